"""From decisions to the command of vLLM, with its environment."""
