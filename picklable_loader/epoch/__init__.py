"""One pass: how it is set up, where it is, and what is saved of it."""
