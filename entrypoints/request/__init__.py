"""The user's request: the command line, vLLM's flags, goals."""
