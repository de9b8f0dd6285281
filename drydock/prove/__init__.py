"""Show that an image works: demo, model, prove."""
