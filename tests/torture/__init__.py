"""Torture: random loaders, saved at random moments in random ways, for as long as one likes.

``python -m torture`` draws trials from a seed. A trial is one loader of `kinds`, some options, and
some saves; `law` says what must hold of it. One that fails is made smaller, and printed as a script
that fails by itself.
"""
