"""The gateway of inference nodes as a process."""
