"""The public loader and iterator, and how they are shown."""
