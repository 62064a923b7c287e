"""Engines, which fetch batches in this process or in workers."""
