"""Frames as they come: hashed, judged, stored, put into batches, and removed when their time is over."""
