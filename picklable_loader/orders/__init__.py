"""Samplers, and the orders of indices that they give."""
