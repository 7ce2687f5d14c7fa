"""The queues of the knowledge flow, and what of its settings can be changed while it runs."""

from pipeline.engine import live_settings as live
from pipeline.engine.gate_registry import GatedQueue
from pipeline.engine.live_settings import Live
from pipeline.engine.transaction import ReadTx
from pipeline.flows.knowledge.settings import KnowledgeSettings, own
from pipeline.settings import LOCAL, Settings
from pipeline.storage.context import Context

IO = "io"
"""Reading and fetching: waits for networks and for the processes that read files."""
CONTROL = "control"
"""Work that takes a moment and calls nobody."""
CPU = "cpu"
"""Lexical vectors, made here."""
_HELP = {
    "global_concurrency": "items under way at once, over all bases",
    "per_base_concurrency": "items of one base under way at once",
    "io_concurrency": "items read at once",
    "write_concurrency": "items whose vectors are written at once",
    "batch_size": "chunks that are embedded in one call, of items read from now on",
    "max_queue_size": "items that wait; beyond it new ones are refused",
}


def embeddings_queue(provider: str) -> str:
    """The queue of calls for vectors: a provider's own, so that one that is closed keeps no other's work waiting."""
    return CPU if provider == LOCAL else f"knowledge.{provider}"


def gated_queues(settings: Settings) -> list[GatedQueue]:
    """A queue for each provider that makes vectors of knowledge."""
    found = own(settings)
    return [
        GatedQueue(embeddings_queue(name), name, "embeddings", concurrency=found.embed_concurrency)
        for name in found.providers
    ]


def live_settings(settings: Settings) -> dict[str, Live]:
    """Every live setting of the flow, with what its own settings say as the default."""
    return live.of_fields("knowledge", own(settings), _HELP)


def in_force(context: Context) -> KnowledgeSettings:
    """The flow's settings with what was changed live. A change holds for what begins after it."""
    with context.db.read() as session:
        return in_force_in(session)


def in_force_in(tx: ReadTx) -> KnowledgeSettings:
    """The same, as this transaction sees them."""
    return live.with_changes(own(tx.settings), live.values(tx, live_settings(tx.settings)))
