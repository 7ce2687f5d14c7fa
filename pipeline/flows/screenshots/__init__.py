"""Screenshots: models turn frames into segments, and segments into nodes of a searchable graph.

Design: docs/sources/screenshots.md.
"""

from pipeline.engine.gate_registry import Declaration
from pipeline.flows.screenshots import live_settings

DECLARATION = Declaration(gated_queues=live_settings.gated_queues, live_settings=live_settings.live_settings)
