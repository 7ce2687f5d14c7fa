"""Screenshots: frames become segments, segments become nodes of a graph that can be searched. Source 000."""

from pipeline.flows.screenshots import live_settings
from pipeline.providers.gates import Declaration

DECLARATION = Declaration(gated_queues=live_settings.gated_queues, live_settings=live_settings.live_settings)
