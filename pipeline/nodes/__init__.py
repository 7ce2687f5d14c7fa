"""Inference nodes: machines that offer capabilities to a gateway, which gives them jobs. Source 004."""
