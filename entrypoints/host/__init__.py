"""Reading a host, live or recorded: files, commands, processes, limits."""
