"""What an image is on disk: OCI layouts, layers, references."""
