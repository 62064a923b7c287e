"""Writes and reads checkpoint files, and looks into them without running code."""
