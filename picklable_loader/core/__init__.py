"""What a loader is to do and where it stands: values and one state machine, nothing that acts.

No torch, process, clock, thread or global random number generator in here (`tests/test_layers.py`).
Later modules know earlier ones only: events, seeds, order, plan, cursor, schedule, snapshot.
"""
