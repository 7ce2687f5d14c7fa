"""Units of work: claimed, done, settled. One module for each kind of unit."""
