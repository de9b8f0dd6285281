"""What the model is: its configuration, size and shape."""
