"""The work on a task: seed, fetch, collate, answer. It runs in a worker, or in this process."""
