"""Simulates a whole fleet on virtual time, with faults that a seed determines. See docs/explanation/simulation.md."""
