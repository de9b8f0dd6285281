"""Several machines: one topology file, planned with reasons, rendered, checked, started."""
