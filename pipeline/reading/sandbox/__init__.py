"""Child processes that read hostile files, and their limits."""
