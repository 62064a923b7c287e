"""Datasets, streams and samplers that tests share, each defined once; all pickle by reference."""
