"""Music: makes descriptions, tags and vectors of songs, batch by batch, within the providers' limits.

Design: docs/sources/music.md.
"""

from pipeline.engine.gate_registry import Declaration
from pipeline.flows.music import live_settings

DECLARATION = Declaration(gated_queues=live_settings.gated_queues, live_settings=live_settings.live_settings)
