"""Documents: split → convert → merge. Design: docs/sources/documents.md."""

from pipeline.engine.gate_registry import Declaration

DECLARATION = Declaration()
