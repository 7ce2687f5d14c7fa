"""Documents: split → convert → merge. Source 001."""

from pipeline.providers.gates import Declaration

DECLARATION = Declaration()
