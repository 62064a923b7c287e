"""Workers that die, parents that die, and what is left of them."""
