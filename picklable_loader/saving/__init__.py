"""Forms in which values are saved. Nothing here knows a loader."""
