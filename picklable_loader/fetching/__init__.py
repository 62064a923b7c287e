"""Turns tasks into batches, in this process or in workers. None of it is ever in a pickle."""
