"""What locking anew would change, asked without changing anything: packages, base tags, git refs."""
