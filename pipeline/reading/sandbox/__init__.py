"""Child processes that read hostile files, and the limits that they keep to."""
