"""Who looks at screenshots, how they are batched, and when a frame counts as seen."""

import re
from typing import Self

from pydantic import BaseModel, Field, model_validator

_CAPTURED = re.compile(r"screen:(\*|[1-9][0-9]{0,3})|window:[^\s:/\\]{1,100}")
_LONGEST_DAYS = 36_500
"""Calendars end: "for ever" is a hundred years."""


class ScreenshotSettings(BaseModel):
    """Names in brackets are those of the design: docs/sources/screenshots.md#settings."""

    vision_provider: str = ""
    """The provider that looks at screenshots. Empty: text recognition, window titles and rules make the segments."""
    vision_model: str = ""
    text_provider: str = ""
    """The provider that expands segments into nodes and merges nodes. Empty: both are done by rules."""
    text_model: str = ""
    embeddings_provider: str = ""
    """The provider that makes the nodes' vectors. Empty: lexical ones, made here, which match words, not meaning."""
    embeddings_model: str = ""
    time_zone: str = "UTC"
    """The zone of times that people and models read: `Europe/Berlin`."""
    batch_size: int = Field(default=5, ge=1, le=100)
    """Screenshots in a batch [batchSize: 5]."""
    batch_timeout_s: float = Field(default=30, gt=0, le=3600)
    """How long after its first screenshot a smaller batch is ready [batchTimeoutMs: 30000]."""
    shard_size: int = Field(default=5, ge=1, le=50)
    """Screenshots in one call [vlmShardSize: 5]."""
    vision_concurrency: int = Field(default=4, ge=1, le=256)
    """Calls to the vision model under way at once [vlmGlobalConcurrency: 4]."""
    text_concurrency: int = Field(default=4, ge=1, le=256)
    """Calls to the text model under way at once [textGlobalConcurrency: 4]."""
    max_segments_per_batch: int = Field(default=10, ge=1, le=100)
    """Segments of a batch; of more, the least important are merged into a neighbour [maxSegmentsPerBatch: the design
    gives no value]."""
    backoff_s: list[float] = Field(default=[5.0, 15.0, 60.0, 300.0, 600.0], max_length=20)
    """Waits before the second, third … attempt [backoffSchedule]. There is one attempt more than there are waits, so
    that the last wait is used too [maxAttempts: 5]."""
    jitter_s: float = Field(default=10, ge=0, le=3600)
    """The most that is added to each wait at random [jitterMs: 10000]."""
    stale_running_s: float = Field(default=300, gt=0)
    """How long a claim holds without its worker being missed [staleRunningThresholdMs: 5 min]."""
    recovery_age_s: float = Field(default=300, gt=0)
    """Age at which a batch goes to the recovery track [laneRecoveryAgeMs: 5 min]."""
    realtime_weight: int = Field(default=3, ge=1, le=100)
    recovery_weight: int = Field(default=1, ge=1, le=100)
    """Turns of the two tracks while both have work. Rule: docs/sources/screenshots.md#tracks."""
    dedup_threshold: int = Field(default=10, ge=0, le=64)
    """Bits of 256 in which a frame may differ from a recent one and still be a duplicate. Measured on 1080p windows:
    clock 2, cursor 0 to 10, one typed line 6 to 28; a closer look tells changed text from a cursor."""
    dedup_threshold_pressed: int = Field(default=16, ge=0, le=64)
    """The same while the vision queue is behind."""
    dedup_frames: int = Field(default=8, ge=1, le=100)
    """How many accepted frames of its source a new one is compared with."""
    dedup_window_s: float = Field(default=600, gt=0)
    """Frames older than this are not compared: a screen that stays the same is stored again after this long."""
    pressure_batches: int = Field(default=8, ge=1)
    """How many waiting batches widen the threshold; twice as many make batches longer, too."""
    pressed_batch_factor: int = Field(default=2, ge=1, le=10)
    """The factor by which the size and the time of batches grow then."""
    history_threads: int = Field(default=3, ge=0, le=20)
    history_minutes: float = Field(default=15, ge=0, le=_LONGEST_DAYS * 1440)
    history_entities: int = Field(default=10, ge=0, le=100)
    """What the model is told of the past: threads, open segments of the last minutes, entities.

    Rule: docs/sources/screenshots.md#history.
    """
    retention_days: float = Field(default=7, ge=0, le=_LONGEST_DAYS)
    """Days that original frames are kept after their analysis; 0: none, they are deleted at once. Texts are kept."""
    ledger_days: float = Field(default=30, gt=0, le=_LONGEST_DAYS)
    """Days that the record of rejected frames is kept: an idle screen adds 17,000 lines a day."""
    max_image_mb: int = Field(default=50, ge=1, le=200)
    """The largest frame that is accepted."""
    capture_sources: list[str] = Field(default_factory=list, max_length=50)
    """What workers of the role `capture` capture: `screen:1`, `screen:*` (every screen), `window:Firefox` (a program's
    foremost window), `window:0x2a00007`. Empty: nothing."""
    capture_interval_s: float = Field(default=5, ge=0.2)
    """How often they do, and `penstock screenshots capture`."""
    excluded_apps: list[str] = Field(default_factory=list)
    """Programs whose frames are never stored: patterns such as `*KeePass*`, in any case."""
    excluded_titles: list[str] = Field(default_factory=list)
    """The same for window titles: `*private browsing*`."""

    @property
    def batch_workers(self) -> int:
        """Batches worked on at once: half the calls, since each makes several; 1–4.

        Rule: docs/sources/screenshots.md#concurrency.
        """
        return min(4, max(1, -(-self.vision_concurrency // 2)))

    @property
    def merge_workers(self) -> int:
        """Node merges at once: the text calls that are left, 1–10. The design gives 0 for its defaults."""
        reserved = 2
        return min(10, max(1, self.text_concurrency - reserved - self.batch_workers))

    @property
    def scan_limit(self) -> int:
        """Rows that one search for work reads: 20–200. Rule: docs/sources/screenshots.md#scan."""
        return min(200, max(20, (self.batch_workers + self.merge_workers) * 4))

    @model_validator(mode="after")
    def _pressure_widens(self) -> Self:
        if self.dedup_threshold_pressed < self.dedup_threshold:
            raise ValueError("screenshots: dedup_threshold_pressed must not be below dedup_threshold")
        for source in self.capture_sources:
            if not _CAPTURED.fullmatch(source):
                raise ValueError(
                    f"screenshots: capture_sources: {source!r} is not screen:NUMBER, screen:* or window:NAME"
                )
        if any(wait < 0 for wait in self.backoff_s):
            raise ValueError("screenshots: backoff_s must not hold negative waits")
        return self
