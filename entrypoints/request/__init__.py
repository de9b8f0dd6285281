"""What the user asked for: arguments, vLLM flags, intents."""
