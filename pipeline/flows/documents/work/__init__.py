"""The claimed work: one module for each kind of unit."""
