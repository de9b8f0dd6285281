"""The verbs of the command line: options records, and the functions that tasks.py lists."""
