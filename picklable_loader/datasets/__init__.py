"""Iterable-style data: what a dataset may be, and wrappers."""
