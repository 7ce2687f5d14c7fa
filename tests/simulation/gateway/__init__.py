"""Gateways, nodes and sessions on virtual time, with faults: the machine of a job. See docs/simulation.md."""
