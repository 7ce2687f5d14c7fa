"""A whole fleet on virtual time, with faults by a seed. See docs/simulation.md."""
