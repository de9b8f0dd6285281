"""What a newer drydock changes in a project's rows."""
