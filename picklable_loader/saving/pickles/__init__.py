"""Pickles of loaders and iterators: the codec of each part, and the size of the whole."""
