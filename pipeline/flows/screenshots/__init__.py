"""Screenshots: frames become segments, segments become nodes of a graph that can be searched. Source 000."""

from pipeline.engine.gate_registry import Declaration
from pipeline.flows.screenshots import live_settings

DECLARATION = Declaration(gated_queues=live_settings.gated_queues, live_settings=live_settings.live_settings)
