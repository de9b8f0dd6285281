"""The files of a project: how they begin, which are stale."""
