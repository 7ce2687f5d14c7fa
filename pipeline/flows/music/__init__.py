"""Music: songs become descriptions, tags and vectors, batch by batch, within what providers allow.

Design: docs/sources/music.md.
"""

from pipeline.engine.gate_registry import Declaration
from pipeline.flows.music import live_settings

DECLARATION = Declaration(gated_queues=live_settings.gated_queues, live_settings=live_settings.live_settings)
