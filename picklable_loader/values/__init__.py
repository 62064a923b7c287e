"""States and iterators as values: what is read without running code."""
