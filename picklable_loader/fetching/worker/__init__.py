"""What runs where the data is: seed, fetch, collate, answer. It can be called without a process."""
