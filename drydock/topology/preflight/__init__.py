"""`topology check`: whether the machines of a topology can run it, before anything is started."""
