"""Inference nodes: machines that offer capabilities to a gateway, which gives them jobs.

Design: docs/sources/nodes.md.
"""
