"""What `plan --html`, `check --html` write: one page each."""
