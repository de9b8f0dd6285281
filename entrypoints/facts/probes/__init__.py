"""Probes: read one kind of device or system, and hold no opinion."""
