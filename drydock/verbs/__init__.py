"""What each verb of ./inv does: a file for each, named as the verb."""
