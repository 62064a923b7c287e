"""States: plain values, their types, checks and JSON."""
