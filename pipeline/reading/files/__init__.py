"""Files that users name: opened with care, told apart by content, found in folders."""
