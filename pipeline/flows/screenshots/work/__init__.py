"""The flow's units of work, a module each, with their claims and settlements."""
