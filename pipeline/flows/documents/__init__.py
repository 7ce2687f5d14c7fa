"""Documents: split → convert → merge. Source 001."""

from pipeline.engine.gate_registry import Declaration

DECLARATION = Declaration()
