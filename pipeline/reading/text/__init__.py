"""Files of many kinds as text, and text in pieces."""
