"""The claimed work: one module for each kind of unit, and the helpers that they share."""
