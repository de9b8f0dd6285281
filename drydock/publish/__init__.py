"""Push an image and its documents to a registry, then its tags."""
