"""What only a checkout of drydock runs: linters, tests, releases."""
