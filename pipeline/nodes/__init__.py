"""Inference nodes: machines that offer what they can do to a gateway, which shares it out. Source 004."""
