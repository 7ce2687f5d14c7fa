"""Settings of the screenshots flow: providers, batches, and when a frame counts as a duplicate."""

import re
from typing import Self

from pydantic import BaseModel, Field, model_validator

_CAPTURED = re.compile(r"screen:(\*|[1-9][0-9]{0,3})|window:[^\s:/\\]{1,100}")
_LONGEST_DAYS = 36_500
"""A hundred years, since calendars end."""


class ScreenshotSettings(BaseModel):
    """Names in brackets are those of the design: docs/sources/screenshots.md#settings."""

    vision_provider: str = ""
    """The provider that analyses screenshots. Empty: text recognition, window titles and rules make the segments."""
    vision_model: str = ""
    text_provider: str = ""
    """The provider that expands segments into nodes and merges nodes. Empty: rules do both."""
    text_model: str = ""
    embeddings_provider: str = ""
    """The provider that makes the nodes' vectors. Empty: lexical vectors, which match words, not meaning."""
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
    """Concurrent calls to the vision model [vlmGlobalConcurrency: 4]."""
    text_concurrency: int = Field(default=4, ge=1, le=256)
    """Concurrent calls to the text model [textGlobalConcurrency: 4]."""
    max_segments_per_batch: int = Field(default=10, ge=1, le=100)
    """The most segments of a batch; further ones are merged into a neighbour [maxSegmentsPerBatch: the design
    gives no value]."""
    backoff_s: list[float] = Field(default=[5.0, 15.0, 60.0, 300.0, 600.0], max_length=20)
    """Waits before the second, third … attempt [backoffSchedule]. Attempts exceed waits by one, so that
    the last wait is used too [maxAttempts: 5]."""
    jitter_s: float = Field(default=10, ge=0, le=3600)
    """The largest random addition to each wait [jitterMs: 10000]."""
    stale_running_s: float = Field(default=300, gt=0)
    """How long a claim lasts even if its worker seems alive [staleRunningThresholdMs: 5 min]."""
    recovery_age_s: float = Field(default=300, gt=0)
    """Age at which a batch goes to the recovery track [laneRecoveryAgeMs: 5 min]."""
    realtime_weight: int = Field(default=3, ge=1, le=100)
    recovery_weight: int = Field(default=1, ge=1, le=100)
    """Turns of the two tracks while both have work. Rule: docs/sources/screenshots.md#tracks."""
    dedup_threshold: int = Field(default=10, ge=0, le=64)
    """Bits of 256 in which a frame may differ from a recent one and still be a duplicate. Measured on 1080p windows:
    clock 2, cursor 0 to 10, one typed line 6 to 28; a closer comparison distinguishes changed text from a cursor."""
    dedup_threshold_pressed: int = Field(default=16, ge=0, le=64)
    """The same while the vision queue is behind."""
    dedup_frames: int = Field(default=8, ge=1, le=100)
    """How many accepted frames of its source are compared with a new frame."""
    dedup_window_s: float = Field(default=600, gt=0)
    """Older frames are not compared, so an unchanged screen is stored again after this time."""
    pressure_batches: int = Field(default=8, ge=1)
    """So many waiting batches widen the threshold; twice as many also make batches longer."""
    pressed_batch_factor: int = Field(default=2, ge=1, le=10)
    """The factor by which batches then grow in size and time."""
    history_threads: int = Field(default=3, ge=0, le=20)
    history_minutes: float = Field(default=15, ge=0, le=_LONGEST_DAYS * 1440)
    history_entities: int = Field(default=10, ge=0, le=100)
    """The history in the model's prompt: threads, open segments of the last minutes, entities.

    Rule: docs/sources/screenshots.md#history.
    """
    retention_days: float = Field(default=7, ge=0, le=_LONGEST_DAYS)
    """Days to keep original frames after their analysis; 0: delete them at once. Texts are kept."""
    ledger_days: float = Field(default=30, gt=0, le=_LONGEST_DAYS)
    """Days to keep the record of rejected frames: an idle screen adds 17,000 lines a day."""
    max_image_mb: int = Field(default=50, ge=1, le=200)
    """The largest accepted frame."""
    capture_sources: list[str] = Field(default_factory=list, max_length=50)
    """Sources of workers of the role `capture`: `screen:1`, `screen:*` (every screen), `window:Firefox` (a program's
    foremost window), `window:0x2a00007`. Empty: nothing."""
    capture_interval_s: float = Field(default=5, ge=0.2)
    """The interval of these workers and of `penstock screenshots capture`."""
    excluded_apps: list[str] = Field(default_factory=list)
    """Programs whose frames are never stored: patterns such as `*KeePass*`, in any case."""
    excluded_titles: list[str] = Field(default_factory=list)
    """The same for window titles: `*private browsing*`."""

    @property
    def batch_workers(self) -> int:
        """Concurrent batches: half the calls, since each batch makes several; 1–4.

        Rule: docs/sources/screenshots.md#concurrency.
        """
        return min(4, max(1, -(-self.vision_concurrency // 2)))

    @property
    def merge_workers(self) -> int:
        """Concurrent node merges: the remaining text calls, 1–10. The design gives 0 for its defaults."""
        reserved = 2
        return min(10, max(1, self.text_concurrency - reserved - self.batch_workers))

    @property
    def scan_limit(self) -> int:
        """Rows read by one search for work: 20–200. Rule: docs/sources/screenshots.md#scan."""
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
