"""Writes and reads saved values: states, pickles and files. Nothing here knows a loader."""
