"""Documents: split → convert → merge. Source 001."""
