"""Parity with the installed torch: whatever a user can observe of a loader, observed on both sides."""
