"""The command line: the verbs with their options, help and completion, and what verbs share."""
