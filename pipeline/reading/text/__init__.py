"""Turn files of many kinds into text, and text into chunks."""
