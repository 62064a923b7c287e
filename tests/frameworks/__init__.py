"""Loaders inside of real frameworks: ``make test-frameworks``.

Each case is three runs: whole, killed 2 steps after its checkpoint, and resumed in a fresh process.
These packages are in an environment of their own, so the other tests do not collect this folder.
"""
