"""Images on disk: OCI layouts, layers, references."""
