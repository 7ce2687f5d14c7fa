"""Gateways, nodes and sessions on virtual time, with faults. See docs/explanation/simulation.md."""
