"""CI: workflows rendered from the matrix, and the tasks that they run."""
