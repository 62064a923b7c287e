"""Adapters to other libraries, one file each. Nothing of the package imports them."""
