"""The sub-commands that look at files, loaders and machines: one module each."""
