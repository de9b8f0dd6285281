"""Published recipes of vLLM as a locked input: read from a repository, reduced to facts, committed."""
