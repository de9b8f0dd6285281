"""The command line: which verbs there are, what words mean, help."""
