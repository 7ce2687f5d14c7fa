"""Open pictures within limits, recognise their text, and ask a small model about their layout."""
