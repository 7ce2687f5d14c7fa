"""Units of work, a module each: they are claimed, and then settled, failed or released."""
