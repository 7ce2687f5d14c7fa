"""Tables of capture and analysis: sources, screenshots, the ledger of rejected frames, batches, shards.

Rules: docs/sources/screenshots.md#intake. `graph.models` has the tables of nodes.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Float, ForeignKey, Index, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from pipeline.engine.announced import announced
from pipeline.engine.claims import ClaimColumns, claimable_index, claims_index, waits_index
from pipeline.engine.tables import Base, RowId, UtcDateTime, table_of
from pipeline.flows.screenshots.states import CLAIMABLE, Ask, Step, WorkStatus

MAX_SOURCE = 120


def _where(condition: str) -> dict[str, Any]:
    """Return the arguments of an index, for both databases, that limit it to rows with this condition.

    SQLite has no statistics: it uses this index for queries with the same condition, instead of an index of all rows.
    """
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


class Source(Base):
    """A screen or window. Locking its row serialises the comparison and batching of its frames."""

    __tablename__ = "screenshot_sources"

    key: Mapped[str] = mapped_column(String(MAX_SOURCE), primary_key=True)
    """`screen:ID` or `window:ID`."""
    active: Mapped[bool] = mapped_column(default=True)
    """False: refuse its frames."""
    pressure: Mapped[int] = mapped_column(default=0)
    """How far analysis lagged at the latest frame, 0 to 2. Each level starts and ends at different backlogs."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Screenshot(Base):
    """An accepted frame. It is in the buffer while `batch_id` is None; Penstock owns its file."""

    __tablename__ = "screenshots"
    __table_args__ = (
        # A capture delivered twice becomes one row.
        UniqueConstraint("source_key", "ts", "sha256"),
        Index("ix_screenshots_batch_id", "batch_id"),
        Index("ix_screenshots_source_key_id", "source_key", "id"),
        Index("ix_screenshots_ts", "ts"),
        Index("ix_screenshots_status", "status"),
        Index(
            "ix_screenshots_retention",
            "storage_state",
            "retention_expires_at",
            **_where("retention_expires_at IS NOT NULL"),
        ),
        Index("ix_screenshots_buffer", "source_key", "created_at", **_where("batch_id IS NULL")),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    source_key: Mapped[str] = mapped_column(ForeignKey("screenshot_sources.key"))
    ts: Mapped[datetime] = mapped_column(UtcDateTime)
    """Time of capture by the capturing side's clock, which may go backwards."""
    file: Mapped[str] = mapped_column(String(120))
    """Name inside the screenshots folder."""
    sha256: Mapped[str] = mapped_column(String(64))
    phash: Mapped[str] = mapped_column(String(64))
    """256 bits, hexadecimal."""
    size_bytes: Mapped[int]
    app: Mapped[str] = mapped_column(String(200), default="")
    """The program's name from the capturing side (`appHint`); `app_guess` comes from the model."""
    window_title: Mapped[str] = mapped_column(String(500), default="")
    original_path: Mapped[str] = mapped_column(Text, default="", server_default="")
    """Path of the added file on its machine; empty for frames sent as bytes. `file` is our copy."""
    status: Mapped[str] = mapped_column(String(20), default=WorkStatus.PENDING.value)
    """vlmStatus."""
    vlm_attempts: Mapped[int] = mapped_column(default=0, server_default="0")
    """Number of analyses started, in any batch, since it arrived or was replayed. A retry of a batch counts only for
    frames of the shards that it repeats."""
    vlm_next_run_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Time of the next analysis of its batch, after a failed attempt."""
    error: Mapped[str | None] = mapped_column(Text)
    batch_id: Mapped[int | None] = mapped_column(ForeignKey("screenshot_batches.id", ondelete="SET NULL"))
    """enqueuedBatchId: set in the transaction that creates the batch."""
    ocr_text: Mapped[str | None] = mapped_column(Text)
    ui_text_snippets: Mapped[str] = mapped_column(Text, default="[]")
    detected_entities: Mapped[str] = mapped_column(Text, default="[]")
    app_guess: Mapped[str] = mapped_column(String(200), default="")
    app_guess_confidence: Mapped[float | None] = mapped_column(Float)
    """The model's confidence, from 0 to 1; None without a guess."""
    storage_state: Mapped[str] = mapped_column(String(10), default="stored")
    """`stored`, `deleted` (by retention), or `missing` (the file disappeared from the folder)."""
    retention_expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """Time of arrival by our clock; the buffer's timeout starts here."""
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Rejection(Base):
    """A rejected frame and the reason, kept for audits; Penstock does not keep the file."""

    __tablename__ = "screenshot_rejections"
    __table_args__ = (
        Index("ix_screenshot_rejections_created_at", "created_at"),
        Index("ix_screenshot_rejections_source_key_ts", "source_key", "ts"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    source_key: Mapped[str] = mapped_column(String(MAX_SOURCE))
    ts: Mapped[datetime] = mapped_column(UtcDateTime)
    reason: Mapped[str] = mapped_column(String(20))
    """`duplicate`, `inactive`, `excluded`, or `refused` for an unreadable picture."""
    detail: Mapped[str] = mapped_column(String(300), default="")
    """The problem of a refused frame."""
    threshold: Mapped[int | None]
    """The threshold in bits, which is higher while analysis lags."""
    distance: Mapped[int | None]
    """Bits of 256 that differ from the nearest frame."""
    nearest_id: Mapped[int | None] = mapped_column(ForeignKey("screenshots.id", ondelete="SET NULL"), index=True)
    sha256: Mapped[str] = mapped_column(String(64))
    phash: Mapped[str] = mapped_column(String(64), default="")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


_EVENT_COLUMNS = (
    "correlation_id",
    "source_key",
    "step",
    "attempts",
    "attempts_before",
    "started_at",
    "finished_at",
    "waited_ms",
    "vlm_ms",
    "text_ms",
    "error",
)
"""Columns in the events of a batch. Rules: docs/sources/screenshots.md#events."""


class Batch(ClaimColumns, Base):
    """Frames of one source, analysed together."""

    __tablename__ = "screenshot_batches"
    __table_args__ = (
        UniqueConstraint("idempotency_key"),
        Index("ix_screenshot_batches_status_created_at", "status", "created_at"),
        # Also finds the newest and the oldest batches that wait for their turn.
        claimable_index("screenshot_batches", "step", "urgency", "created_at", "id", states=CLAIMABLE),
        claims_index("screenshot_batches"),
        waits_index("screenshot_batches"),
        announced("screenshots", "screenshot_batch", WorkStatus, *_EVENT_COLUMNS),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    correlation_id: Mapped[str] = mapped_column(String(60))
    """batchId: `batch_TIMESTAMP_RANDOM`, for logs."""
    source_key: Mapped[str] = mapped_column(String(MAX_SOURCE))
    shot_ids: Mapped[str] = mapped_column(Text)
    """JSON list of frame ids, in the order of capture."""
    ts_start: Mapped[datetime] = mapped_column(UtcDateTime)
    ts_end: Mapped[datetime] = mapped_column(UtcDateTime)
    history_pack: Mapped[str] = mapped_column(Text, default="{}")
    """JSON: recent threads, open segments and entities at the batch's creation."""
    idempotency_key: Mapped[str] = mapped_column(String(255))
    status: Mapped[str] = mapped_column(String(20), default=WorkStatus.PENDING.value)
    step: Mapped[str] = mapped_column(String(20), default=Step.ANALYSE.value)
    """During `analyse` the batch is `running` without a claim: workers claim its shards. They claim it for `expand`."""
    index_json: Mapped[str | None] = mapped_column(Text)
    """The merged results of the shards. They cost money, so they stay after the nodes are written."""
    reply: Mapped[str | None] = mapped_column(Text)
    """The text model's reply, stored before the nodes are written."""
    ask: Mapped[str] = mapped_column(String(10), default=Ask.FIRST.value)
    """The purpose of the next call of `expand`."""
    made_by: Mapped[str] = mapped_column(String(10), default="")
    """Origin of the nodes: `model`, `direct` or `rules`."""
    notes: Mapped[str] = mapped_column(Text, default="[]")
    """JSON list of sentences about omissions, corrections and steps without a model."""
    error: Mapped[str | None] = mapped_column(Text)
    urgency: Mapped[int | None]
    """The priority of its messages once its turn for analysis comes; None: it waits for its turn."""
    attempts_before: Mapped[int] = mapped_column(default=0, server_default="0")
    """Failed attempts of an earlier step or from before a replay; each of these resets `attempts`."""
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    rests_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """Time at which its latest attempt failed; None: it is running, or no attempt failed."""
    waited_ms: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """Time between attempts."""
    vlm_ms: Mapped[int] = mapped_column(default=0)
    text_ms: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class Shard(ClaimColumns, Base):
    """A part of a batch that fits one call. Its result stays: a retry repeats only failed shards."""

    __tablename__ = "screenshot_shards"
    __table_args__ = (
        UniqueConstraint("batch_id", "number"),
        claimable_index("screenshot_shards", "batch_id", "releases", "number", states=CLAIMABLE),
        claims_index("screenshot_shards"),
        waits_index("screenshot_shards"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    batch_id: Mapped[int] = mapped_column(ForeignKey("screenshot_batches.id", ondelete="CASCADE"))
    number: Mapped[int]
    shot_ids: Mapped[str] = mapped_column(Text)
    status: Mapped[str] = mapped_column(String(20), default=WorkStatus.PENDING.value)
    result: Mapped[str | None] = mapped_column(Text)
    reply: Mapped[str | None] = mapped_column(Text)
    """An unusable reply, during its repair."""
    ask: Mapped[str] = mapped_column(String(10), default=Ask.FIRST.value)
    notes: Mapped[str] = mapped_column(Text, default="[]")
    model: Mapped[str] = mapped_column(String(120), default="")
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


SOURCES = table_of(Source)
SHOTS = table_of(Screenshot)
REJECTIONS = table_of(Rejection)
BATCHES = table_of(Batch)
SHARDS = table_of(Shard)
