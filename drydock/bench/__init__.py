"""What `invoke bench` measures: ours beside the plain way, in turns, in one run."""
