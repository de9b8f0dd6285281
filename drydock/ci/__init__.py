"""What a CI server runs: workflows rendered from the matrix, and the verbs that they call."""
