"""The Docker engine: find, install, start, load."""
