"""Starts, watches and ends worker processes, and does nothing else."""
