"""What is done with a project: begin, lock, build, update and upgrade its rows."""
