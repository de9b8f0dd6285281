"""Lets vLLM check a plan, in vLLM's own Python. It imports vLLM, and nothing else of the image side."""
