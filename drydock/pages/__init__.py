"""The pages of docs/ with their generated tables, as files or as a site."""
