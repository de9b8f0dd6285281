"""Intel Gaudi."""
