"""From a variant with its lock to an image."""
