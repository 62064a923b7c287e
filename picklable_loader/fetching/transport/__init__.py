"""Moves messages and batches between a loader and its workers. Knows tasks, not schedules."""
