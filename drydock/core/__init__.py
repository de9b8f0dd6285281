"""Errors, the console, files, paths and processes. Imports nothing else of drydock."""
