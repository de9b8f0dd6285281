"""The image side: looks at the host, says what is wrong, decides, and becomes vLLM. Standard library only."""
