"""What an image in a registry holds: inspected, compared, verified, audited."""
