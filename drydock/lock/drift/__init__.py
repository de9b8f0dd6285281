"""What locking again would change, without changing anything: packages, base tags, git refs."""
