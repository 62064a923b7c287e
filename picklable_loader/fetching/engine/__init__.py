"""Who fetches the batches: this process, or workers."""
