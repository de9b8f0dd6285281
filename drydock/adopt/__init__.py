"""Make an image of others one of drydock's: two more layers on it, in a registry, with a row."""
