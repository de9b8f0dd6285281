"""Errors, the console, files, paths, processes. Imports nothing else of drydock."""
