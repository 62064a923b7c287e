"""How loaders and iterators are shown."""
