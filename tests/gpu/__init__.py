"""Tests on a GPU: `make test-gpu`."""
