"""Several machines: one topology is read, planned with reasons, rendered, checked and rolled out."""
