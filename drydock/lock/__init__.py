"""images/VARIANT/lock.json: resolve, read, compare."""
