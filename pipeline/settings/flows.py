"""Sizes, limits and timings of each flow."""

import os
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, SecretStr, field_validator, model_validator

_LONGEST_DAYS = 36_500
"""Calendars end: what is to be kept for ever is kept for a hundred years."""


class DocumentSettings(BaseModel):
    """Limits and timings of the documents flow. Source 001, section 9 gives the names in brackets."""

    converter_count: int = Field(default_factory=lambda: max(2, os.cpu_count() or 2), ge=1, le=256)
    """Processes that convert pages on this machine, and lanes of a locally converted document [converterCount: 3;
    here one for each core, since a local page is pure computation]."""
    lease_s: float = Field(default=300, gt=0)
    """How long a claim holds without its worker being missed [taskTimeout: 5 min]."""
    page_timeout_s: float = Field(default=120, gt=0)
    """How long one page may take [pageTimeout: 2 min]."""
    quantum_s: float = Field(default=1.0, ge=0, le=60)
    """How long a lane goes on with one document before others have their turn."""
    backoff_s: list[float] = Field(default=[5.0, 15.0, 60.0], max_length=20)
    """Waits before the second, third … attempt after a transient error; jitter of up to a fifth is added. A page has
    one attempt more than there are waits, then it fails for good."""
    max_upload_mb: int = Field(default=500, ge=1)
    max_pages: int = Field(default=20_000, ge=1)
    max_pixels: int = Field(default=25_000_000, ge=10_000)
    """Pixels of one page image; larger pages are rendered at a lower resolution."""
    max_page_points: float = Field(default=14_400, gt=0)
    """Longest side of a page in points (1/72 inch); PDF's own limit. Longer ones are refused."""
    ocr_dpi: int = Field(default=200, ge=72, le=300)
    """Resolution at which pages are rendered for text recognition. A4 is looked at with 3 million pixels (175 dpi) up
    to 200, with more above."""
    ocr_pictures: bool = True
    """Whether text is recognised in pictures on pages that have a text layer too."""
    keep_headers: bool = False
    """Whether local conversion keeps headers, footers, page numbers and watermarks, which it takes away otherwise."""
    stale_temp_s: float = Field(default=24 * 3600, gt=0)
    """Age at which a temp folder without a running document is removed (source 001, section 7.1)."""
    cache: bool = True
    """Take over what an identical page, model, prompt and settings gave before, without a call."""


class MusicSettings(BaseModel):
    """Where songs come from, and who analyses them. Source 002."""

    server_url: str = ""
    """A Subsonic or OpenSubsonic server, such as Navidrome: `https://music.example.org`."""
    user: str = ""
    password: SecretStr = SecretStr("")
    folder: Path | None = None
    """A folder of audio files whose tags are read, for people without a server."""
    provider: str = ""
    """The provider that writes the metadata. Empty: songs can be synced, but not analysed."""
    model: str = ""
    embeddings_provider: str = ""
    """The provider that makes vectors. Empty: lexical ones, made here, which know words but no meaning."""
    embeddings_model: str = ""
    page_size: int = Field(default=500, ge=1, le=500)
    """Songs asked for at once from the server; 500 is what servers allow."""
    timeout_s: float = Field(default=30, gt=0, le=600)
    """Hard limit of one call to the music server."""
    lease_s: float = Field(default=300, gt=0)
    """How long a batch is held at least; longer where the provider's own limit is."""
    backoff_s: list[float] = Field(default=[5.0, 10.0], max_length=20)
    """Waits before the second and third attempt of a batch's step: exponential from 5 s. Source 002, section 2.D."""

    @field_validator("server_url")
    @classmethod
    def _http_without_password(cls, value: str) -> str:
        if not value:
            return value
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("must be an http:// or https:// URL")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("must be an address alone: user and password have settings of their own")
        return value.rstrip("/").removesuffix("/rest")

    @field_validator("folder")
    @classmethod
    def _full_path(cls, value: Path | None) -> Path | None:
        return value.expanduser().resolve() if value else None


class ScreenshotSettings(BaseModel):
    """Who looks at screenshots, in what portions, and when one counts as seen already."""

    vision_provider: str = ""
    """The provider that looks at screenshots. Empty: text recognition, window titles and rules make the segments."""
    vision_model: str = ""
    text_provider: str = ""
    """The provider that expands segments into nodes and merges nodes. Empty: both are done by rules."""
    text_model: str = ""
    embeddings_provider: str = ""
    """The provider that makes the nodes' vectors. Empty: lexical ones, made here, which know words but no meaning."""
    embeddings_model: str = ""
    time_zone: str = "UTC"
    """The zone that people are told times in, and models: `Europe/Berlin`."""
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
    recovery_age_s: float = Field(default=300, gt=0)
    """Batches that are older go to the recovery lane [laneRecoveryAgeMs: 5 min]."""
    realtime_weight: int = Field(default=3, ge=1, le=100)
    recovery_weight: int = Field(default=1, ge=1, le=100)
    """Turns of the lanes while both have work. Source 000, section 2.4.1: 3 to 1."""
    dedup_threshold: int = Field(default=10, ge=0, le=64)
    """Bits of 256 in which a frame may differ from a recent one and still be the same. Measured on 1080p windows: clock
    2, cursor 0 to 10, one typed line 6 to 28; text that changed is told from a cursor by a closer look."""
    dedup_threshold_pressed: int = Field(default=16, ge=0, le=64)
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
    history_minutes: float = Field(default=15, ge=0, le=_LONGEST_DAYS * 1440)
    history_entities: int = Field(default=10, ge=0, le=100)
    """What the model is told about before: threads, open segments of so many minutes, entities. Source 000, 1.3."""
    retention_days: float = Field(default=7, ge=0, le=_LONGEST_DAYS)
    """Days that original frames are kept after their analysis; 0: they are deleted at once. Texts are kept."""
    ledger_days: float = Field(default=30, gt=0, le=_LONGEST_DAYS)
    """Days that the ledger of rejected frames is kept: an idle screen adds 17,000 lines a day."""
    max_image_mb: int = Field(default=50, ge=1, le=200)
    """The largest frame that is taken."""
    capture_interval_s: float = Field(default=5, ge=0.2)
    """How often `penstock screenshots capture` looks at the screens."""
    excluded_apps: list[str] = Field(default_factory=list)
    """Programs whose frames are never stored: patterns like `*KeePass*`, whatever the case."""
    excluded_titles: list[str] = Field(default_factory=list)
    """The same for window titles: `*private browsing*`."""

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
