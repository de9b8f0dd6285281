"""What each verb does: a file for each, named as the verb."""
