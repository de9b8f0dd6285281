"""Benchmarks (`./inv bench`): drydock and a plain Dockerfile, measured alternately in one run."""

PARTS = ("build", "start", "serve", "size", "ship", "many", "growth", "tool")
"""In the order of the page. run.py measures them."""
