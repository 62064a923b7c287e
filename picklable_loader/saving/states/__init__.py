"""Saved states as plain values: their types, checks and JSON."""
