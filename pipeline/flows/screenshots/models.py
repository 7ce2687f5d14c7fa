"""Tables of what is captured and analysed: sources, screenshots, the ledger of rejected frames, batches, shards.

Rules: docs/sources/screenshots.md#intake. Nodes and what belongs to them are in `graph.models`.
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
    """An index of only these rows. SQLite, which does not know how many there are, uses it for queries that name them,
    and no index of other rows."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


class Source(Base):
    """A screen or window. Its row is the lock of its buffer: its frames are compared and batched one by one."""

    __tablename__ = "screenshot_sources"

    key: Mapped[str] = mapped_column(String(MAX_SOURCE), primary_key=True)
    """`screen:ID` or `window:ID`."""
    active: Mapped[bool] = mapped_column(default=True)
    """False: its frames are refused."""
    pressure: Mapped[int] = mapped_column(default=0)
    """How far analysis was behind when a frame last came, 0 to 2: each level begins and ends at different numbers."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Screenshot(Base):
    """A frame that was accepted. In the buffer while `batch_id` is None; its file is ours."""

    __tablename__ = "screenshots"
    __table_args__ = (
        # The same capture, delivered twice, is one row.
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
    """When it was captured, by the capturing side's clock, which may go backwards."""
    file: Mapped[str] = mapped_column(String(120))
    """Name within the screenshots' folder."""
    sha256: Mapped[str] = mapped_column(String(64))
    phash: Mapped[str] = mapped_column(String(64))
    """256 bits, hexadecimal."""
    size_bytes: Mapped[int]
    app: Mapped[str] = mapped_column(String(200), default="")
    """What the capturing side says (`appHint`); `app_guess` is the model's."""
    window_title: Mapped[str] = mapped_column(String(500), default="")
    original_path: Mapped[str] = mapped_column(Text, default="", server_default="")
    """Where the file that was added is on its machine; empty for what came as bytes. `file` is our copy."""
    status: Mapped[str] = mapped_column(String(20), default=WorkStatus.PENDING.value)
    """vlmStatus."""
    vlm_attempts: Mapped[int] = mapped_column(default=0, server_default="0")
    """How often its analysis was begun, in any batch, since it came or was replayed. A batch that is tried again counts
    only for frames whose shard is asked again."""
    vlm_next_run_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When its batch is analysed again, after an attempt that failed."""
    error: Mapped[str | None] = mapped_column(Text)
    batch_id: Mapped[int | None] = mapped_column(ForeignKey("screenshot_batches.id", ondelete="SET NULL"))
    """enqueuedBatchId: set once, in the transaction that makes the batch."""
    ocr_text: Mapped[str | None] = mapped_column(Text)
    ui_text_snippets: Mapped[str] = mapped_column(Text, default="[]")
    detected_entities: Mapped[str] = mapped_column(Text, default="[]")
    app_guess: Mapped[str] = mapped_column(String(200), default="")
    app_guess_confidence: Mapped[float | None] = mapped_column(Float)
    """From 0 to 1, as the model says; None without a guess."""
    storage_state: Mapped[str] = mapped_column(String(10), default="stored")
    """`stored`, `deleted` (retention), or `missing` (somebody else took the file away)."""
    retention_expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """When it arrived, by our clock: the buffer's time-out counts from it."""
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Rejection(Base):
    """A frame that was not accepted, and why: what remains of it for an audit, for its file is not kept."""

    __tablename__ = "screenshot_rejections"
    __table_args__ = (
        Index("ix_screenshot_rejections_created_at", "created_at"),
        Index("ix_screenshot_rejections_source_key_ts", "source_key", "ts"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    source_key: Mapped[str] = mapped_column(String(MAX_SOURCE))
    ts: Mapped[datetime] = mapped_column(UtcDateTime)
    reason: Mapped[str] = mapped_column(String(20))
    """`duplicate`, `inactive`, `excluded`, or `refused` for what is not a readable picture."""
    detail: Mapped[str] = mapped_column(String(300), default="")
    """What was wrong with a refused frame."""
    threshold: Mapped[int | None]
    """Bits that it was judged by: more while analysis is behind."""
    distance: Mapped[int | None]
    """Bits that differ from the nearest frame, of 256."""
    nearest_id: Mapped[int | None] = mapped_column(ForeignKey("screenshots.id", ondelete="SET NULL"), index=True)
    sha256: Mapped[str] = mapped_column(String(64))
    phash: Mapped[str] = mapped_column(String(64), default="")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


_TOLD = (
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
"""What the events of a batch tell. Rules: docs/sources/screenshots.md#events."""


class Batch(ClaimColumns, Base):
    """Frames of one source that are analysed together."""

    __tablename__ = "screenshot_batches"
    __table_args__ = (
        UniqueConstraint("idempotency_key"),
        Index("ix_screenshot_batches_status_created_at", "status", "created_at"),
        # Also finds whose turn is next, from both ends.
        claimable_index("screenshot_batches", "step", "urgency", "created_at", "id", states=CLAIMABLE),
        claims_index("screenshot_batches"),
        waits_index("screenshot_batches"),
        announced("screenshots", "screenshot_batch", WorkStatus, *_TOLD),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    correlation_id: Mapped[str] = mapped_column(String(60))
    """batchId: `batch_TIMESTAMP_RANDOM`, for logs."""
    source_key: Mapped[str] = mapped_column(String(MAX_SOURCE))
    shot_ids: Mapped[str] = mapped_column(Text)
    """JSON list in the order of capture."""
    ts_start: Mapped[datetime] = mapped_column(UtcDateTime)
    ts_end: Mapped[datetime] = mapped_column(UtcDateTime)
    history_pack: Mapped[str] = mapped_column(Text, default="{}")
    """JSON: recent threads, open segments and entities when the batch was made."""
    idempotency_key: Mapped[str] = mapped_column(String(255))
    status: Mapped[str] = mapped_column(String(20), default=WorkStatus.PENDING.value)
    step: Mapped[str] = mapped_column(String(20), default=Step.ANALYSE.value)
    """During `analyse` the batch is `running` without a claim, for its shards have theirs. `expand` is claimed."""
    index_json: Mapped[str | None] = mapped_column(Text)
    """The shards' results, merged: paid for, so they are kept, even after the nodes are written."""
    reply: Mapped[str | None] = mapped_column(Text)
    """The text model's: stored before the nodes are written."""
    ask: Mapped[str] = mapped_column(String(10), default=Ask.FIRST.value)
    """What the next call of `expand` is for."""
    made_by: Mapped[str] = mapped_column(String(10), default="")
    """Who made the nodes: `model`, `direct` or `rules`."""
    notes: Mapped[str] = mapped_column(Text, default="[]")
    """JSON list: what was left out, corrected, or done without a model, in words."""
    error: Mapped[str | None] = mapped_column(Text)
    urgency: Mapped[int | None]
    """The priority of its messages, since its turn to be analysed has come; None: it waits for its turn."""
    attempts_before: Mapped[int] = mapped_column(default=0, server_default="0")
    """Attempts that failed in a step that is done, or before a replay: `attempts` begins anew then."""
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    rests_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When its latest attempt failed; None: it is at work, or nothing failed."""
    waited_ms: Mapped[int] = mapped_column(BigInteger, default=0, server_default="0")
    """How long it rested between attempts."""
    vlm_ms: Mapped[int] = mapped_column(default=0)
    text_ms: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class Shard(ClaimColumns, Base):
    """A part of a batch that fits one call. Its result stays: only failed shards are asked again."""

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
    """One that was not usable, while its repair is under way."""
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
