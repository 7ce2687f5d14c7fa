"""The queues of the screenshots flow that have gates, and its live settings, by the same rules as at its start."""

from pipeline.engine import live_settings as live
from pipeline.engine.gate_registry import GatedQueue
from pipeline.engine.live_settings import Live, whole
from pipeline.settings import ScreenshotSettings, Settings
from pipeline.storage.context import Context

SCREENSHOT_VISION, SCREENSHOT_TEXT = "screenshot-vision", "screenshot-text"
SCREENSHOT_EMBEDDINGS = "screenshot-embeddings"
"""The flow's queues."""
CONTROL = "control"
"""Work that takes a moment and calls nobody."""
CPU = "cpu"
"""Text recognition here, if no provider analyses frames."""
CAPTURE = "capture"
"""Captures of screens and windows: only a worker with a display consumes it."""
_HELP = {
    "batch_size": "screenshots of a batch, from the next one on",
    "batch_timeout_s": "seconds after its first screenshot when a smaller batch is ready",
    "shard_size": "screenshots in one call, from the next batch on",
    "max_segments_per_batch": "segments of a batch; beyond that, the least important are joined",
    "recovery_age_s": "seconds; older batches go to the recovery track",
    "realtime_weight": "turns of new batches while old ones also wait",
    "recovery_weight": "turns of old and retried batches while new ones also wait",
    "dedup_threshold": "bits of 256 in which a frame may differ from a recent one and still be the same",
    "dedup_threshold_pressed": "the same while the vision queue is behind",
    "dedup_frames": "accepted frames of its source that a new one is compared with",
    "dedup_window_s": "seconds; older frames are not compared",
    "pressure_batches": "waiting batches that widen the threshold; twice as many also make batches larger",
    "retention_days": "days that original frames are kept after their analysis; 0: deleted at once",
}
EXCLUSIONS = {
    "excluded_apps": "programs whose frames are never stored, beside those of the settings: *KeePass*; Signal",
    "excluded_titles": "the same for window titles: *private browsing*",
}
MAX_PATTERNS, MAX_PATTERN = 200, 200
_BETWEEN = ";"
_CONCURRENCY = {"vision_concurrency": SCREENSHOT_VISION, "text_concurrency": SCREENSHOT_TEXT}


def gated_queues(settings: Settings) -> list[GatedQueue]:
    """The flow's own queues: a pile of documents never stands before what is on the screen.

    With the concurrency of docs/sources/screenshots.md#settings. None where no provider is named.
    """
    own = settings.screenshots
    queues = [
        GatedQueue(SCREENSHOT_VISION, own.vision_provider, "vision", concurrency=own.vision_concurrency),
        GatedQueue(SCREENSHOT_TEXT, own.text_provider, "text", concurrency=own.text_concurrency),
        GatedQueue(SCREENSHOT_EMBEDDINGS, own.embeddings_provider, "embeddings"),
    ]
    return [queue for queue in queues if queue.provider]


def live_settings(settings: Settings) -> dict[str, Live]:
    """Every live setting of the flow, with what its own settings say as the default.

    Patterns that exclude frames are beside those of the settings: none of those can be taken back.
    """
    more = {f"screenshots.{name}": Live(text, patterns, "") for name, text in EXCLUSIONS.items()}
    return live.of_fields("screenshots", settings.screenshots, _HELP) | more


def patterns(text: str) -> str:
    """Reads patterns with semicolons between them; gives them once each. Raises `ValueError`."""
    found = {one.casefold(): one for one in reversed(patterns_in(text))}
    named = list(found.values())[::-1]
    if len(named) > MAX_PATTERNS:
        raise ValueError(f"{len(named)} patterns are more than {MAX_PATTERNS}")
    for one in named:
        if len(one) > MAX_PATTERN:
            raise ValueError(f"a pattern has {MAX_PATTERN} characters at most")
        if not one.strip("*?"):
            raise ValueError(f"{one} would exclude everything: switch the source off instead")
    return f"{_BETWEEN} ".join(named)


def patterns_in(text: str) -> list[str]:
    """The patterns of such a text."""
    return [one.strip() for one in text.split(_BETWEEN) if one.strip()]


def screenshots_in_force(context: Context) -> ScreenshotSettings:
    """The flow's settings with what was changed live. A change holds for what begins after it."""
    own = context.settings.screenshots
    known = live_settings(context.settings)
    slots = {f"queue.{queue}.concurrency": name for name, queue in _CONCURRENCY.items()}
    known |= {key: Live("", whole(0, 10_000), 0) for key in slots}
    with context.db.read() as session:
        found = live.values(session, known)
    changed = {value.key: value.value for value in found if not value.is_default}
    # No limit of their own: then as many as were meant at the start.
    update = {
        slots.get(key, key.partition(".")[2]): value for key, value in changed.items() if value or key not in slots
    }
    for name in EXCLUSIONS.keys() & update.keys():
        update[name] = [*getattr(own, name), *patterns_in(update[name])]
    return own.model_copy(update=update) if update else own
