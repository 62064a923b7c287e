"""Lifetimes of worker processes, and nothing else."""
