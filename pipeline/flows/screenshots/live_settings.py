"""The flow's queues with gates, and its live settings, which follow the rules of the startup settings."""

from pipeline.engine import live_settings as live
from pipeline.engine.gate_registry import GatedQueue
from pipeline.engine.live_settings import Live, whole
from pipeline.settings import ScreenshotSettings, Settings
from pipeline.storage.context import Context

SCREENSHOT_VISION, SCREENSHOT_TEXT = "screenshot-vision", "screenshot-text"
SCREENSHOT_EMBEDDINGS = "screenshot-embeddings"
"""The flow's queues."""
CONTROL = "control"
"""The queue of short work without calls."""
CPU = "cpu"
"""The queue of text recognition on this machine, for use without a vision provider."""
CAPTURE = "capture"
"""The queue of captures, which only workers with a display consume."""
_HELP = {
    "batch_size": "screenshots in a batch, from the next batch on",
    "batch_timeout_s": "seconds from its first screenshot until a smaller batch is ready",
    "shard_size": "screenshots in one call, from the next batch on",
    "max_segments_per_batch": "most segments of a batch; beyond that, the least important join a neighbour",
    "recovery_age_s": "seconds; older batches go to the recovery track",
    "realtime_weight": "turns of new batches while old batches also wait",
    "recovery_weight": "turns of old and retried batches while new batches also wait",
    "dedup_threshold": "most bits of 256 by which a frame may differ from a recent frame and count as a duplicate",
    "dedup_threshold_pressed": "the same while the vision queue is behind",
    "dedup_frames": "accepted frames of its source to compare a new frame with",
    "dedup_window_s": "seconds; a new frame is not compared with older frames",
    "pressure_batches": "waiting batches that widen the threshold; twice as many also make batches larger",
    "retention_days": "days to keep original frames after their analysis; 0: delete them at once",
}
EXCLUSIONS = {
    "excluded_apps": "programs whose frames Penstock never stores, beside those of the settings: *KeePass*; Signal",
    "excluded_titles": "the same for window titles: *private browsing*",
}
MAX_PATTERNS, MAX_PATTERN = 200, 200
_BETWEEN = ";"
_CONCURRENCY = {"vision_concurrency": SCREENSHOT_VISION, "text_concurrency": SCREENSHOT_TEXT}


def gated_queues(settings: Settings) -> list[GatedQueue]:
    """Return the flow's own queues with gates, one for each configured provider's capability, so that piles of
    documents never delay frames.

    Their concurrency follows docs/sources/screenshots.md#settings. Capabilities without a provider have no queue.
    """
    own = settings.screenshots
    queues = [
        GatedQueue(SCREENSHOT_VISION, own.vision_provider, "vision", concurrency=own.vision_concurrency),
        GatedQueue(SCREENSHOT_TEXT, own.text_provider, "text", concurrency=own.text_concurrency),
        GatedQueue(SCREENSHOT_EMBEDDINGS, own.embeddings_provider, "embeddings"),
    ]
    return [queue for queue in queues if queue.provider]


def live_settings(settings: Settings) -> dict[str, Live]:
    """Return every live setting of the flow; the defaults are the startup settings.

    Live exclusions add to those of the startup settings, and cannot remove any of them.
    """
    more = {f"screenshots.{name}": Live(text, patterns, "") for name, text in EXCLUSIONS.items()}
    return live.of_fields("screenshots", settings.screenshots, _HELP) | more


def patterns(text: str) -> str:
    """Normalise a text of patterns, separated by semicolons: without repeats, in any case, and without blanks around
    them.

    Raises `ValueError` for too many or too long patterns, or for one that excludes everything.
    """
    by_key = {pattern.casefold(): pattern for pattern in reversed(patterns_in(text))}
    named = list(by_key.values())[::-1]
    if len(named) > MAX_PATTERNS:
        raise ValueError(f"{len(named)} patterns are more than {MAX_PATTERNS}")
    for pattern in named:
        if len(pattern) > MAX_PATTERN:
            raise ValueError(f"a pattern may have at most {MAX_PATTERN} characters")
        if not pattern.strip("*?"):
            raise ValueError(f"{pattern} would exclude everything: switch the source off instead")
    return f"{_BETWEEN} ".join(named)


def patterns_in(text: str) -> list[str]:
    """Split a text at its semicolons into patterns, without blanks around them."""
    return [part.strip() for part in text.split(_BETWEEN) if part.strip()]


def screenshots_in_force(context: Context) -> ScreenshotSettings:
    """Return the flow's settings with live changes. A change applies to work that starts after it."""
    own = context.settings.screenshots
    known = live_settings(context.settings)
    slots = {f"queue.{queue}.concurrency": name for name, queue in _CONCURRENCY.items()}
    known |= {key: Live("", whole(0, 10_000), 0) for key in slots}
    with context.db.read() as session:
        values = live.values(session, known)
    changed = {value.key: value.value for value in values if not value.is_default}
    # A concurrency of 0 means no limit: keep the startup setting then.
    update = {
        slots.get(key, key.partition(".")[2]): value for key, value in changed.items() if value or key not in slots
    }
    for name in EXCLUSIONS.keys() & update.keys():
        update[name] = [*getattr(own, name), *patterns_in(update[name])]
    return own.model_copy(update=update) if update else own
