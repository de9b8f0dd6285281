"""How a model is spread over devices: what fits, and in which layout."""
