"""Bytes: what goes between a loader and its workers. Knows tasks, not schedules."""
