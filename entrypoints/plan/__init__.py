"""From decisions to the command and environment of vLLM."""
