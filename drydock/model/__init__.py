"""Records of what an image is made of. Pure data."""
