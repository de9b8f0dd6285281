"""From a variant and its lock to an image."""
