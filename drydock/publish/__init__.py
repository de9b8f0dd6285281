"""Pushes an image with its attached documents to a registry, then sets its tags."""
