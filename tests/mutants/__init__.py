"""Small faults planted in ``core/``: does ``tests/core`` alone notice each of them?"""
