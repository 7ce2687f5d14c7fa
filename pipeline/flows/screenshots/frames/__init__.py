"""Frames: capture, intake, batching, pictures for people, and retention."""
