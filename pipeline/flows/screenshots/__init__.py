"""Screenshots: frames become segments, segments become nodes of a graph that can be searched.

Design: docs/sources/screenshots.md.
"""

from pipeline.engine.gate_registry import Declaration
from pipeline.flows.screenshots import live_settings

DECLARATION = Declaration(gated_queues=live_settings.gated_queues, live_settings=live_settings.live_settings)
