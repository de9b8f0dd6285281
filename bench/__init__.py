"""What `invoke bench` measures: drydock and the plain way, in turns, in one run."""

PARTS = ("build", "start", "serve", "size", "ship", "tool")
"""In the order of the page; run.py says how each is measured."""
