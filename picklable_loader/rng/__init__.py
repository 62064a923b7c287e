"""Random numbers: seeded, set aside, saved."""
