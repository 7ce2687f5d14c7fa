"""Tables of knowledge bases: bases, their items, the items' chunks, and the batches in which chunks are embedded."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, LargeBinary, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from pipeline.engine.announced import announced
from pipeline.engine.claims import ClaimColumns, claimable_index, claims_index, waits_index
from pipeline.engine.tables import Base, RowId, UtcDateTime, table_of
from pipeline.flows.knowledge.states import BatchStatus, ItemStatus
from pipeline.storage.fulltext import FullText

MAX_NAME, MAX_URL = 255, 2000
FULL_TEXT = FullText("knowledge_fts", "knowledge_chunks", "created_at", scope="base_id")


def _where(condition: str) -> dict[str, Any]:
    # SQLite uses a partial index only if the statement spells its condition the same, and SQLAlchemy writes IS 0.
    spelt = condition.replace("IS FALSE", "IS 0").replace("IS TRUE", "IS 1")
    return {"sqlite_where": text(spelt), "postgresql_where": text(condition)}


class KnowledgeBase(Base):
    """A knowledge base. Its row is the lock of its line, so transactions add items one after another."""

    __tablename__ = "knowledge_bases"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(String(MAX_NAME), unique=True)
    description: Mapped[str] = mapped_column(Text, default="")
    provider: Mapped[str] = mapped_column(String(60))
    """The provider of vectors for items read from now on; `local`: lexical vectors from this machine."""
    model: Mapped[str] = mapped_column(String(120), default="")
    chunk_tokens: Mapped[int]
    chunk_overlap: Mapped[int]
    next_position: Mapped[int] = mapped_column(BigInteger, default=1)
    turn: Mapped[int] = mapped_column(BigInteger, default=0)
    """The count of admissions over all bases when an item of this base was last admitted; the lowest turn is next."""
    deleting: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class KnowledgeTurns(Base):
    """One row: the count of turns, and the lock of transactions that check limits over all bases."""

    __tablename__ = "knowledge_turns"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    count: Mapped[int] = mapped_column(BigInteger, default=0)


class KnowledgeItem(ClaimColumns, Base):
    """A file, a page, a note or a sitemap of a base. Its row is the lock of its batches and chunks."""

    __tablename__ = "knowledge_items"
    __table_args__ = (
        UniqueConstraint("base_id", "source_key"),
        claims_index("knowledge_items"),
        waits_index("knowledge_items"),
        Index("ix_knowledge_items_base_id_position", "base_id", "position"),
        Index("ix_knowledge_items_group_id", "group_id"),
        Index("ix_knowledge_items_status", "status"),
        Index(
            "ix_knowledge_items_line",
            "base_id",
            "position",
            **_where("status IN ('pending') AND admitted_at IS NULL AND deleting IS FALSE"),
        ),
        Index("ix_knowledge_items_admitted", "admitted_at", **_where("admitted_at IS NOT NULL")),
        Index("ix_knowledge_items_deleting", "base_id", **_where("deleting IS TRUE")),
        announced(
            "knowledge", "knowledge_item", ItemStatus, "base_id", "type", "name", "progress", "chunk_count", "error"
        ),
    )

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    base_id: Mapped[str] = mapped_column(ForeignKey("knowledge_bases.id", ondelete="CASCADE"))
    position: Mapped[int] = mapped_column(BigInteger)
    """The item's place in the base's line, lowest first. Reprocessing takes a new one."""
    type: Mapped[str] = mapped_column(String(20))
    status: Mapped[str] = mapped_column(String(20), default=ItemStatus.PENDING)
    name: Mapped[str] = mapped_column(String(MAX_NAME))
    """The name to show: a file's name, a URL, or the first line of a note."""
    title: Mapped[str] = mapped_column(String(MAX_NAME), default="")
    """The title in its text."""
    url: Mapped[str | None] = mapped_column(String(MAX_URL))
    origin: Mapped[str | None] = mapped_column(Text)
    """The real path of the original file, by which a scan recognises it."""
    group_id: Mapped[str | None] = mapped_column(String(20))
    group_name: Mapped[str | None] = mapped_column(Text)
    source_key: Mapped[str] = mapped_column(String(64))
    """The hash that identifies its source: a base has the same source once."""
    content_sha256: Mapped[str | None] = mapped_column(String(64))
    """The hash and name of the stored copy; None for items that are fetched."""
    size_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    workload: Mapped[int] = mapped_column(BigInteger, default=0)
    """The expected cost, by the formula of docs/sources/knowledge.md#workload."""
    progress: Mapped[int] = mapped_column(default=0)
    generation: Mapped[int] = mapped_column(default=0)
    """The generation of the searchable chunks; 0: none yet."""
    building: Mapped[int] = mapped_column(default=1)
    """The generation that reading builds; chunks of other generations are left over from failures."""
    space: Mapped[str] = mapped_column(String(200), default="")
    """Provider and model of the vectors of the generation `building`, set by reading."""
    published_space: Mapped[str] = mapped_column(String(200), default="")
    chunk_count: Mapped[int] = mapped_column(default=0)
    batches: Mapped[int] = mapped_column(default=0)
    batches_left: Mapped[int] = mapped_column(default=0)
    loss: Mapped[str | None] = mapped_column(Text)
    """A `states.Loss`; None in almost all cases."""
    error: Mapped[str | None] = mapped_column(Text)
    warning: Mapped[str | None] = mapped_column(Text)
    admitted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """The time since when it is under way; None: it waits in line, or is at rest."""
    deleting: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class KnowledgeChunk(Base):
    """A passage of an item's text. Searchable while its generation is the item's."""

    __tablename__ = "knowledge_chunks"
    __table_args__ = (
        UniqueConstraint("item_id", "generation", "number"),
        Index("ix_knowledge_chunks_base_id", "base_id"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    item_id: Mapped[str] = mapped_column(ForeignKey("knowledge_items.id", ondelete="CASCADE"))
    base_id: Mapped[str] = mapped_column(String(16))
    generation: Mapped[int]
    number: Mapped[int]
    batch: Mapped[int]
    """The number of its batch."""
    text: Mapped[str] = mapped_column(Text)
    heading: Mapped[str] = mapped_column(Text, default="[]")
    """The headings above it, outermost first; JSON."""
    page: Mapped[int | None]
    source: Mapped[str | None] = mapped_column(String(MAX_URL))
    """The address of the sitemap's page that contains it."""
    start: Mapped[int]
    end: Mapped[int]
    """The passage is characters `start` to before `end` of the item's text."""
    digest: Mapped[str] = mapped_column(String(32))
    """The hash of the embedded text: an unchanged chunk keeps its vector."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class KnowledgeBatch(ClaimColumns, Base):
    """Chunks of one item that are embedded in one call, with their vectors until publication."""

    __tablename__ = "knowledge_batches"
    __table_args__ = (
        UniqueConstraint("item_id", "generation", "number"),
        claims_index("knowledge_batches"),
        waits_index("knowledge_batches"),
        claimable_index("knowledge_batches", "item_id", "releases", "number", states=[BatchStatus.PENDING]),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    item_id: Mapped[str] = mapped_column(ForeignKey("knowledge_items.id", ondelete="CASCADE"))
    generation: Mapped[int]
    number: Mapped[int]
    size: Mapped[int]
    status: Mapped[str] = mapped_column(String(20), default=BatchStatus.PENDING)
    provider: Mapped[str] = mapped_column(String(60))
    vectors: Mapped[bytes | None] = mapped_column(LargeBinary)
    """The vectors of its chunks, in their order; see `storage.vectors.pack`."""
    error: Mapped[str | None] = mapped_column(Text)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


BASES = table_of(KnowledgeBase)
TURNS = table_of(KnowledgeTurns)
ITEMS = table_of(KnowledgeItem)
CHUNKS = table_of(KnowledgeChunk)
BATCHES = table_of(KnowledgeBatch)
