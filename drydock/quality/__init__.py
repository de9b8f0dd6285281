"""Linters and tests: how they are run, with which Python and as which user."""
