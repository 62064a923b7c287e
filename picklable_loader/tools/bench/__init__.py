"""``python -m picklable_loader bench``: your own loader, measured."""
