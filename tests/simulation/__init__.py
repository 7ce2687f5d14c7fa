"""A whole fleet on virtual time, with faults by a seed. See docs/explanation/simulation.md."""
