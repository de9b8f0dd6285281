"""Known vulnerabilities of what a lock pins."""
