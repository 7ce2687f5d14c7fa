"""The gateway process for inference nodes."""
