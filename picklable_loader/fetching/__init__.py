"""All that acts: tasks become batches here. Nothing of it is ever in a pickle."""
