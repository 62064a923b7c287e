"""The plan and the position of a pass, as values and one state machine. Nothing in here acts.

No torch, process, clock, thread or global random number generator in here (`tests/test_layers.py`).
"""
