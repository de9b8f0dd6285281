"""Start vLLM, supervise it, and report its health."""
