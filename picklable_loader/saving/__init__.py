"""How a loader and its iterator are pickled, and what they are pickled with."""
