"""Errors, parsing, records: what every other folder uses."""
