"""Starts vLLM, supervises it, reports its health."""
