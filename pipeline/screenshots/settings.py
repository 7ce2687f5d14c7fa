"""What can be set about screenshots. Source 000, section 8 gives the names in brackets."""

from typing import Self

from pydantic import BaseModel, Field, model_validator


class ScreenshotSettings(BaseModel):
    """Who looks at screenshots, in what portions, and when one counts as seen already."""

    vision_provider: str = ""
    """The provider that looks at screenshots. Empty: text recognition, window titles and rules make the segments."""
    vision_model: str = ""
    text_provider: str = ""
    """The provider that expands segments into nodes and merges nodes. Empty: both are done by rules."""
    text_model: str = ""
    batch_size: int = Field(default=5, ge=1, le=100)
    """Screenshots of a batch [batchSize: 5]."""
    batch_timeout_s: float = Field(default=30, gt=0, le=3600)
    """A smaller batch is ready so long after its first screenshot [batchTimeoutMs: 30000]."""
    shard_size: int = Field(default=5, ge=1, le=50)
    """Screenshots that are looked at in one call [vlmShardSize: 5]."""
    vision_concurrency: int = Field(default=4, ge=1, le=256)
    """Calls to the vision model under way at once [vlmGlobalConcurrency: 4]."""
    text_concurrency: int = Field(default=4, ge=1, le=256)
    """Calls to the text model under way at once [textGlobalConcurrency: 4]."""
    max_segments_per_batch: int = Field(default=10, ge=1, le=100)
    """Segments of a batch; where there are more, the least important are joined to a neighbour [maxSegmentsPerBatch:
    the source names it without a value]."""
    backoff_s: list[float] = Field(default=[5.0, 15.0, 60.0, 300.0, 600.0], max_length=20)
    """Waits before the second, third … attempt [backoffSchedule]. There is one attempt more than there are waits, so
    that the last one is used too [maxAttempts: 5]."""
    jitter_s: float = Field(default=10, ge=0, le=3600)
    """Up to so much is added to each wait at random [jitterMs: 10000]."""
    stale_running_s: float = Field(default=300, gt=0)
    """How long a claim holds without its worker being missed [staleRunningThresholdMs: 5 min]."""
    scan_interval_s: float = Field(default=60, gt=0)
    """How often idle work is looked for at the latest [scanIntervalMs: 60000]."""
    recovery_age_s: float = Field(default=300, gt=0)
    """Batches that are older go to the recovery lane [laneRecoveryAgeMs: 5 min]."""
    realtime_weight: int = Field(default=3, ge=1, le=100)
    recovery_weight: int = Field(default=1, ge=1, le=100)
    """Turns of the lanes while both have work. Source 000, section 2.4.1: 3 to 1."""
    dedup_threshold: int = Field(default=6, ge=0, le=64)
    """Bits of 256 in which a frame may differ from a recent one and still be the same. Measured on a 1080p window:
    clock 2, cursor 4, one typed line 12."""
    dedup_threshold_pressed: int = Field(default=10, ge=0, le=64)
    """The same while the vision queue is behind."""
    dedup_frames: int = Field(default=8, ge=1, le=100)
    """Accepted frames of the source that a new one is compared with."""
    dedup_window_s: float = Field(default=600, gt=0)
    """Older frames are not compared with: what still looks the same is taken again after so long."""
    pressure_batches: int = Field(default=8, ge=1)
    """So many batches waiting widen the threshold; twice as many make batches longer, too."""
    pressed_batch_factor: int = Field(default=2, ge=1, le=10)
    """By how much batches (their size and their time) grow then."""
    history_threads: int = Field(default=3, ge=0, le=20)
    history_minutes: float = Field(default=15, ge=0)
    history_entities: int = Field(default=10, ge=0, le=100)
    """What the model is told about before: threads, open segments of so many minutes, entities. Source 000, 1.3."""

    @property
    def batch_workers(self) -> int:
        """Batches worked on at once: half the calls, since each makes several; 1–4. Source 000, section 2.1."""
        return min(4, max(1, -(-self.vision_concurrency // 2)))

    @property
    def merge_workers(self) -> int:
        """Node merges at once: what text calls are left, never none; 1–10. Section 5.3 computes 0 for the defaults."""
        reserved = 2
        return min(10, max(1, self.text_concurrency - reserved - self.batch_workers))

    @property
    def scan_limit(self) -> int:
        """Rows that one look for work reads: 20–200. Source 000, section 2.1."""
        return min(200, max(20, (self.batch_workers + self.merge_workers) * 4))

    @model_validator(mode="after")
    def _pressure_widens(self) -> Self:
        if self.dedup_threshold_pressed < self.dedup_threshold:
            raise ValueError("screenshots: dedup_threshold_pressed must not be below dedup_threshold")
        if any(wait < 0 for wait in self.backoff_s):
            raise ValueError("screenshots: backoff_s must not hold negative waits")
        return self
