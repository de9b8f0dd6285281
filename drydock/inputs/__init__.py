"""The inputs of an image, by hash: wheels, Debian packages, sources, base images, supplied files."""
