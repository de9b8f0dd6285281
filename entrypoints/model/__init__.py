"""What the model is: its configuration, size, shape."""
