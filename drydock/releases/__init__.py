"""Releases of drydock: their files, changelog, and what their versions promise."""
