"""The verbs of the entrypoint."""
