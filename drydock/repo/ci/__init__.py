"""CI servers: workflows rendered from the matrix, and the verbs that they call."""
