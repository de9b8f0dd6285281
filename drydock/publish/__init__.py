"""Push an image and its attached documents to a registry, and set its tags."""
