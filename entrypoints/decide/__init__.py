"""Pure functions that choose a setting, with the reason. One module or folder for each accelerator."""
