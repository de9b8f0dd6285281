"""What breaks for a command between two versions of vLLM."""
