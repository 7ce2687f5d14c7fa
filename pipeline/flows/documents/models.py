"""Tables of the documents flow. Rules: docs/sources/documents.md#schema."""

import json
import zlib
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Dialect, ForeignKey, Index, LargeBinary, String, Text, false, text
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from pipeline.engine.announced import announced
from pipeline.engine.claims import ClaimColumns, claimable_index, claims_index, waits_index
from pipeline.engine.tables import Base, RowId, UtcDateTime, storable, table_of
from pipeline.flows.documents.states import OPEN, PAGE, DocumentStatus, PageEvent, PageStatus
from pipeline.storage.fulltext import FullText

FULL_TEXT = FullText("page_fts", items="pages", time="updated_at")
"""The full text of pages whose documents were merged."""
# Each database uses a partial index only if the statement spells its condition exactly so; SQLAlchemy does.
_UNINDEXED_SQLITE, _UNINDEXED_POSTGRESQL = text("unindexed = 1"), text("unindexed")


class CompressedJson(TypeDecorator[dict[str, Any]]):
    """A JSON object, compressed with zlib."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: dict[str, Any] | None, dialect: Dialect) -> bytes | None:  # noqa: ARG002
        return None if value is None else zlib.compress(storable(json.dumps(value, ensure_ascii=False)).encode(), 1)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> dict[str, Any] | None:  # noqa: ARG002
        return None if value is None else dict(json.loads(zlib.decompress(value)))


class Document(ClaimColumns, Base):
    """One submitted file. Splitting and merging claim it."""

    __tablename__ = "documents"
    __table_args__ = (
        Index("ix_documents_created_at", "created_at", "id"),
        Index("ix_documents_status_created_at", "status", "created_at", "id"),
        claims_index("documents"),
        claimable_index("documents", "created_at", "id", states=OPEN),
        waits_index("documents"),
        Index(
            "ix_documents_unindexed",
            "finished_at",
            sqlite_where=_UNINDEXED_SQLITE,
            postgresql_where=_UNINDEXED_POSTGRESQL,
        ),
        announced(
            "documents",
            "document",
            DocumentStatus,
            "filename",
            "pages",
            "completed_count",
            "failed_count",
            "progress",
            "error",
        ),
    )

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    filename: Mapped[str] = mapped_column(String(255))
    """The name the user knows; never used as a path unchanged."""
    source_path: Mapped[str] = mapped_column(Text, default="", server_default="")
    """The path of the original file on this machine; empty for uploads."""
    type: Mapped[str] = mapped_column(String(10))
    page_range: Mapped[str] = mapped_column(Text, default="")
    pages: Mapped[int] = mapped_column(default=0)
    """Pages to convert; 0 until the document is split."""
    provider: Mapped[str] = mapped_column(String(60))
    model: Mapped[str] = mapped_column(String(120), default="")
    model_name: Mapped[str] = mapped_column(String(200), default="")
    """The model's name as shown to people."""
    progress: Mapped[int] = mapped_column(default=0)
    status: Mapped[int] = mapped_column(default=int(DocumentStatus.PENDING))
    completed_count: Mapped[int] = mapped_column(default=0)
    failed_count: Mapped[int] = mapped_column(default=0)
    merged_path: Mapped[str | None] = mapped_column(String(1000))
    doubtful_count: Mapped[int] = mapped_column(default=0, server_default="0")
    """Pages of the result whose text is doubtful."""
    outdated: Mapped[bool] = mapped_column(default=False, server_default=false())
    """The merged file precedes the last retry or merge command; it stays until a new one replaces it."""
    error: Mapped[str | None] = mapped_column(Text)
    submission_key: Mapped[str] = mapped_column(String(80), unique=True)
    """Hash of content and options, so that the same submission finds the same document."""
    size_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    allow_partial: Mapped[bool] = mapped_column(default=False)
    use_cache: Mapped[bool] = mapped_column(default=True)
    pictures: Mapped[bool] = mapped_column(default=False)
    """Store the pictures on the pages as files."""
    unindexed: Mapped[bool] = mapped_column(default=False, server_default=false())
    """The document was merged, but its text is not indexed yet."""
    cost: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """The cost of all calls for this document, over its whole life, by the providers' price lists."""
    escalate: Mapped[str] = mapped_column(String(60), default="", server_default="")
    """The provider to which doubtful and failed pages go; empty: none."""
    budget: Mapped[str] = mapped_column(String(20), default="", server_default="")
    """The budget of the last request to escalate, as its user wrote it."""
    budget_cost: Mapped[float | None]
    """The most that all escalations of the document may cost; None: no limit."""
    budget_pages: Mapped[int | None]
    """The most pages that may go to the other provider; None: no limit."""
    escalated_pages: Mapped[int] = mapped_column(default=0, server_default="0")
    escalated_cost: Mapped[float] = mapped_column(default=0.0, server_default="0")
    unpaid_pages: Mapped[int] = mapped_column(default=0, server_default="0")
    """Pages that stayed as they were because the budget was spent."""
    paused_by: Mapped[str] = mapped_column(String(200), default="", server_default="")
    """The name of the key that paused it last; empty: a user of this machine."""
    paused_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Page(ClaimColumns, Base):
    """One page of a document: the unit of work."""

    __tablename__ = "pages"
    __table_args__ = (
        Index("ix_pages_document_status", "document_id", "status"),
        Index("ix_pages_document_page", "document_id", "page", unique=True),
        claims_index("pages"),
        # The state comes last, so that counts need only the index.
        claimable_index(
            "pages",
            "document_id",
            "provider",
            "attempts",
            "releases",
            "page",
            "status",
            states=PAGE.sources(PageEvent.CLAIM),
        ),
        waits_index("pages"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    document_id: Mapped[str] = mapped_column(ForeignKey("documents.id", ondelete="CASCADE"))
    page: Mapped[int]
    """1-based position in the result."""
    page_source: Mapped[int]
    """1-based page of the source file."""
    status: Mapped[int] = mapped_column(default=int(PageStatus.PENDING))
    provider: Mapped[str] = mapped_column(String(60))
    model: Mapped[str] = mapped_column(String(120), default="")
    content: Mapped[str] = mapped_column(Text, default="")
    """Markdown. A retry keeps the old text until it has a new one."""
    confidence: Mapped[float | None]
    """The confidence of text recognition, 0 to 1; None if the converter reports none, as for copied text."""
    uncertain_share: Mapped[float | None]
    """The share of uncertain words in the recognised text, by characters; None as above."""
    doubtful: Mapped[bool] = mapped_column(default=False, server_default=false())
    """The verdict of `rules.doubt`, made when the text arrived."""
    image_path: Mapped[str | None] = mapped_column(String(1000))
    error: Mapped[str | None] = mapped_column(Text)
    fallback: Mapped[str | None] = mapped_column(Text)
    """Why the text is from local conversion and not from the provider; None: it is not."""
    retry_count: Mapped[int] = mapped_column(default=0)
    """Failed attempts over the page's whole life."""
    use_cache: Mapped[bool] = mapped_column(default=True)
    """False after a user's retry: the cache would return the text that the user rejected."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class PageLayout(Base):
    """The blocks on a page and their boxes: large and rarely read, so they have a table of their own."""

    __tablename__ = "page_layouts"

    page_id: Mapped[int] = mapped_column(ForeignKey("pages.id", ondelete="CASCADE"), primary_key=True)
    data: Mapped[dict[str, Any]] = mapped_column(CompressedJson)
    """`Answer.layout`."""


class PageEscalation(Base):
    """The escalation of a page, at most one for each request of a user. A retry of the page deletes it."""

    __tablename__ = "page_escalations"
    __table_args__ = (
        Index("ix_page_escalations_document_state", "document_id", "state", "page"),
        Index("ix_page_escalations_state", "state"),
    )

    page_id: Mapped[int] = mapped_column(ForeignKey("pages.id", ondelete="CASCADE"), primary_key=True)
    document_id: Mapped[str] = mapped_column(String(32))
    page: Mapped[int]
    provider: Mapped[str] = mapped_column(String(60))
    state: Mapped[str] = mapped_column(String(10))
    """An `EscalationState`."""
    reason: Mapped[str] = mapped_column(Text)
    """Why the earlier text is doubtful, or the error of the page that failed."""
    outcome: Mapped[str] = mapped_column(Text, default="")
    """Which text was kept and why; empty until the escalation has ended."""
    has_text: Mapped[bool]
    """The page had a text; False: it had failed."""
    former_provider: Mapped[str] = mapped_column(String(60))
    former_model: Mapped[str] = mapped_column(String(120))
    reserved: Mapped[float] = mapped_column(default=0.0)
    """The part of the budget that no other page may spend, while this escalation is open."""
    cost: Mapped[float] = mapped_column(default=0.0)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class PageAttempt(Base):
    """An entry of the ledger, which keeps all attempts across retries. Completed attempts double as the cache."""

    __tablename__ = "page_attempts"
    __table_args__ = (
        Index("ix_page_attempts_call_id", "call_id", unique=True),
        Index("ix_page_attempts_document_page", "document_id", "page"),
        Index("ix_page_attempts_cache_key", "cache_key"),
        Index("ix_page_attempts_created_at", "created_at"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    call_id: Mapped[str | None] = mapped_column(String(32))
    """The key of the call; None for an attempt without a call to a provider."""
    document_id: Mapped[str] = mapped_column(ForeignKey("documents.id", ondelete="CASCADE"))
    page: Mapped[int]
    page_source: Mapped[int]
    provider: Mapped[str] = mapped_column(String(60))
    model: Mapped[str] = mapped_column(String(120))
    prompt_hash: Mapped[str] = mapped_column(String(64), default="")
    cache_key: Mapped[str | None] = mapped_column(String(64))
    cached: Mapped[bool] = mapped_column(default=False)
    """Copied from an earlier attempt, without a call."""
    status: Mapped[str] = mapped_column(String(20))
    """`completed`, or the kind of the error."""
    effective: Mapped[bool] = mapped_column(default=True)
    """False if the claim was lost: the ledger keeps the result, but the page does not use it."""
    error: Mapped[str | None] = mapped_column(Text)
    text: Mapped[str] = mapped_column(Text, default="")
    """Markdown."""
    reply: Mapped[dict[str, Any] | None] = mapped_column(CompressedJson)
    """The raw reply and the facts to parse it again (`Answer.reply`), if the text was parsed from one."""
    input_tokens: Mapped[int] = mapped_column(default=0)
    output_tokens: Mapped[int] = mapped_column(default=0)
    latency_ms: Mapped[int] = mapped_column(default=0)
    cost: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """The cost by the provider's price list, in its currency."""
    worker_id: Mapped[str] = mapped_column(String(200))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


DOCUMENTS = table_of(Document)
PAGES = table_of(Page)
ATTEMPTS = table_of(PageAttempt)
LAYOUTS = table_of(PageLayout)
ESCALATIONS = table_of(PageEscalation)
