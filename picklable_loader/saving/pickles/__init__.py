"""Pickles of loaders and iterators: what is written how, and how large it is."""
