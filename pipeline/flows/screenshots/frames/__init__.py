"""Frames: captured, judged, stored, put into batches, and deleted when they expire."""
