"""Decisions: pure functions that choose a setting and say why. One module or folder per accelerator."""
