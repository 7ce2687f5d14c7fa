"""The queues of the knowledge flow, and its live settings."""

from pipeline.engine import live_settings as live
from pipeline.engine.gate_registry import GatedQueue
from pipeline.engine.live_settings import Live
from pipeline.engine.transaction import ReadTx
from pipeline.flows.knowledge.settings import KnowledgeSettings, own
from pipeline.settings import LOCAL, Settings
from pipeline.storage.context import Context

IO = "io"
"""The queue for reading and fetching, which wait for networks and for child processes."""
CONTROL = "control"
"""The queue for short work without calls."""
CPU = "cpu"
"""The queue for lexical vectors, which this machine computes."""
_HELP = {
    "global_concurrency": "items under way at once, over all bases",
    "per_base_concurrency": "items of one base under way at once",
    "io_concurrency": "items read at once",
    "write_concurrency": "items whose vectors are written at once",
    "batch_size": "chunks embedded in one call, for items read from now on",
    "max_queue_size": "items that may wait in line; further items are refused",
}


def embeddings_queue(provider: str) -> str:
    """Return the queue of a provider's calls for vectors: its own, so that its closed gate delays no other provider."""
    return CPU if provider == LOCAL else f"knowledge.{provider}"


def gated_queues(settings: Settings) -> list[GatedQueue]:
    """Return a queue with a gate for each configured provider of vectors; vectors made on this machine need none."""
    section = own(settings)
    return [
        GatedQueue(embeddings_queue(name), name, "embeddings", concurrency=section.embed_concurrency)
        for name in section.providers
    ]


def live_settings(settings: Settings) -> dict[str, Live]:
    """Return every live setting of the flow; the configured settings are the defaults."""
    return live.of_fields("knowledge", own(settings), _HELP)


def in_force(context: Context) -> KnowledgeSettings:
    """Return the flow's settings with live changes. A change applies to work that starts after it."""
    with context.db.read() as session:
        return in_force_in(session)


def in_force_in(tx: ReadTx) -> KnowledgeSettings:
    """Return the flow's settings with live changes, as this transaction sees them."""
    return live.with_changes(own(tx.settings), live.values(tx, live_settings(tx.settings)))
