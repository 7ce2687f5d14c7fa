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
    """Its model, if not the provider's own."""
    text_provider: str = ""
    """The provider that expands segments into nodes and merges nodes. Empty: rules do both."""
    text_model: str = ""
    """Its model."""
    embeddings_provider: str = ""
    """The provider that makes the nodes' vectors. Empty: lexical vectors, made on this machine, which know words but
    not their meaning."""
    embeddings_model: str = ""
    """Its model."""
    time_zone: str = "UTC"
    """The time zone of times that users and models see: a name such as `Europe/Berlin`."""
    batch_size: int = Field(default=5, ge=1, le=100)
    """How many frames of one source make a batch [batchSize]."""
    batch_timeout_s: float = Field(default=30, gt=0, le=3600)
    """Seconds after its first frame at which a smaller batch closes [batchTimeoutMs]."""
    shard_size: int = Field(default=5, ge=1, le=50)
    """How many frames one call analyses [vlmShardSize]."""
    vision_concurrency: int = Field(default=4, ge=1, le=256)
    """How many calls to the vision model may be under way at once [vlmGlobalConcurrency]; live as
    `queue.screenshot-vision.concurrency`. Half as many batches, 1 to 4, run at once."""
    text_concurrency: int = Field(default=4, ge=1, le=256)
    """How many calls to the text model may be under way at once [textGlobalConcurrency]; live as
    `queue.screenshot-text.concurrency`."""
    max_segments_per_batch: int = Field(default=10, ge=1, le=100)
    """Most segments of a batch; beyond that, the least important join a neighbour [maxSegmentsPerBatch]."""
    backoff_s: list[float] = Field(default=[5.0, 15.0, 60.0, 300.0, 600.0], max_length=20)
    """Waits before the second, third … attempt, in seconds [backoffSchedule]. There is one more attempt than there are
    waits."""
    jitter_s: float = Field(default=10, ge=0, le=3600)
    """Up to this many seconds are added to each wait at random [jitterMs]."""
    stale_running_s: float = Field(default=300, gt=0)
    """Seconds after which a claim ends even if its worker seems alive [staleRunningThresholdMs]; during a call, at
    least the provider's `TIMEOUT_S` and a minute."""
    recovery_age_s: float = Field(default=300, gt=0)
    """Batches older than this many seconds go into the recovery lane [laneRecoveryAgeMs]."""
    realtime_weight: int = Field(default=3, ge=1, le=100)
    """Turns of the realtime lane while both lanes have work."""
    recovery_weight: int = Field(default=1, ge=1, le=100)
    """Turns of the recovery lane."""
    dedup_threshold: int = Field(default=10, ge=0, le=64)
    """In how many of 256 bits a frame may differ from a recent one and still count as the same, unless a closer look
    finds changed text. On 1080p windows a clock changes 2 bits, a cursor 0 to 10, a typed line 6 to 28."""
    dedup_threshold_pressed: int = Field(default=16, ge=0, le=64)
    """The same while analysis is behind."""
    dedup_frames: int = Field(default=8, ge=1, le=100)
    """How many accepted frames of its source a frame is compared with."""
    dedup_window_s: float = Field(default=600, gt=0)
    """Penstock compares no older frames, so it accepts an unchanged picture again after this many seconds."""
    pressure_batches: int = Field(default=8, ge=1)
    """This many waiting batches widen the threshold; twice as many also make batches longer."""
    pressed_batch_factor: int = Field(default=2, ge=1, le=10)
    """By how much the size and time of batches grow then."""
    history_threads: int = Field(default=3, ge=0, le=20)
    """How many threads of activity the prompt contains."""
    history_minutes: float = Field(default=15, ge=0, le=_LONGEST_DAYS * 1440)
    """How many minutes of segments the prompt contains."""
    history_entities: int = Field(default=10, ge=0, le=100)
    """How many names the prompt contains: the latest ones.

    Rule: docs/sources/screenshots.md#history.
    """
    retention_days: float = Field(default=7, ge=0, le=_LONGEST_DAYS)
    """Days to keep original frames after their analysis; 0: delete them at once. Texts are kept."""
    ledger_days: float = Field(default=30, gt=0, le=_LONGEST_DAYS)
    """Days to keep the record of rejected frames."""
    max_image_mb: int = Field(default=50, ge=1, le=200)
    """The largest file. Whatever its size, a picture may have at most 89 megapixels and, as JPEG, 500 scans."""
    capture_sources: list[str] = Field(default_factory=list, max_length=50)
    """Sources that a worker of the role `capture` captures at each interval: a JSON list of `screen:1`, `screen:*`
    (every screen), `window:Firefox` (a program's foremost window), `window:0x2a00007`."""
    capture_interval_s: float = Field(default=5, ge=0.2)
    """Seconds between two captures, of that worker and of `penstock screenshots capture`."""
    excluded_apps: list[str] = Field(default_factory=list)
    """Programs whose frames are never stored: a JSON list of patterns such as `*KeePass*`, in any case."""
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
        """Concurrent node merges, 1–10: the text calls that two reserved ones and the batches leave. The design gives 0
        for its defaults."""
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
