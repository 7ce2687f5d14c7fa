"""Knowledge bases: read → chunk → embed → write. Design: docs/sources/knowledge.md."""

from pipeline.engine.gate_registry import Declaration
from pipeline.flows.knowledge import live_settings
from pipeline.flows.knowledge.settings import own

DECLARATION = Declaration(
    gated_queues=live_settings.gated_queues, settings=own, live_settings=live_settings.live_settings
)
