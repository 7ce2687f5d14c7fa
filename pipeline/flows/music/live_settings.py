"""The gated queues of the music flow, and its live settings. Rules: docs/sources/music.md#settings."""

from pipeline.engine import live_settings as live
from pipeline.engine.gate_registry import GatedQueue
from pipeline.engine.live_settings import Live, whole
from pipeline.settings import Settings
from pipeline.storage.context import Context

METADATA_GENERATION, METADATA_ONLY, EMBEDDING_ONLY = "metadata-generation", "metadata-only", "embedding-only"
METADATA_PER_MINUTE, EMBEDDINGS_PER_MINUTE = 2, 10
CONCURRENCY_SETTING, BATCH_SIZE_SETTING = "queue_concurrency", "queue_batch_size"
RATE_LIMIT_SETTING = "queue_rate_limit_max"


def gated_queues(settings: Settings) -> list[GatedQueue]:
    """Return the queues of configured providers, with the limits of docs/sources/music.md#rate-limit."""
    writer, embedder = settings.music.provider, settings.music.embeddings_provider
    queues = []
    if writer:
        limits = f"{METADATA_PER_MINUTE}/min"
        queues += [
            GatedQueue(name, writer, "text", limits, RATE_LIMIT_SETTING)
            for name in (METADATA_GENERATION, METADATA_ONLY)
        ]
    if embedder:
        queues.append(GatedQueue(EMBEDDING_ONLY, embedder, "embeddings", f"{EMBEDDINGS_PER_MINUTE}/min"))
    return queues


def live_settings(settings: Settings) -> dict[str, Live]:  # noqa: ARG001  # the same signature in every flow
    """Return the flow's live settings."""
    return {
        CONCURRENCY_SETTING: Live("batches of songs under way at once", whole(1, 256), 1),
        RATE_LIMIT_SETTING: Live(
            "messages a minute on the metadata queues, unless these have limits of their own",
            whole(1, 100_000),
            METADATA_PER_MINUTE,
        ),
        BATCH_SIZE_SETTING: Live("songs in one batch, from the next batch on", whole(1, 500), 10),
    }


def concurrency(context: Context) -> int:
    """Return how many batches of a run may be under way at once."""
    return _in_force(context, CONCURRENCY_SETTING)


def batch_size(context: Context) -> int:
    """Return the number of songs in a batch."""
    return _in_force(context, BATCH_SIZE_SETTING)


def _in_force(context: Context, key: str) -> int:
    with context.db.read() as session:
        return int(live.values(session, {key: live_settings(context.settings)[key]})[0].value)
