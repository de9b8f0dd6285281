"""The repository itself: verbs, tables, documentation, schemas, linters, CI files."""
