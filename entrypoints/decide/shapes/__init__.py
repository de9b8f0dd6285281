"""Lengths of requests, and the buckets that cover them."""
