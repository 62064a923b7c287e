"""Parity with the installed torch: what a user can observe, observed on both sides."""
