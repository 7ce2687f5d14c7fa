"""Tables of the documents flow. Source 001, section 3, with Task → Document and TaskDetail → Page."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from pipeline.engine.claims import ClaimColumns
from pipeline.engine.tables import Base, UtcDateTime, table_of
from pipeline.flows.documents.states import DocumentStatus, PageStatus

_Id = BigInteger().with_variant(Integer, "sqlite")


class Document(ClaimColumns, Base):
    """One submitted file. Claimed for splitting and for merging."""

    __tablename__ = "documents"
    __table_args__ = (Index("ix_documents_status_updated_at", "status", "updated_at"),)

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    filename: Mapped[str] = mapped_column(String(255))
    """The name the user knows; never used as a path as it is."""
    type: Mapped[str] = mapped_column(String(10))
    page_range: Mapped[str] = mapped_column(Text, default="")
    pages: Mapped[int] = mapped_column(default=0)
    """Pages to convert; 0 until the document was split."""
    provider: Mapped[str] = mapped_column(String(60))
    model: Mapped[str] = mapped_column(String(120), default="")
    model_name: Mapped[str] = mapped_column(String(200), default="")
    """The model's name for people."""
    progress: Mapped[int] = mapped_column(default=0)
    status: Mapped[int] = mapped_column(default=int(DocumentStatus.PENDING))
    completed_count: Mapped[int] = mapped_column(default=0)
    failed_count: Mapped[int] = mapped_column(default=0)
    merged_path: Mapped[str | None] = mapped_column(String(1000))
    error: Mapped[str | None] = mapped_column(Text)
    submission_key: Mapped[str] = mapped_column(String(80), unique=True)
    """Names content and options: the same submission finds the same document."""
    size_bytes: Mapped[int] = mapped_column(BigInteger, default=0)
    allow_partial: Mapped[bool] = mapped_column(default=False)
    use_cache: Mapped[bool] = mapped_column(default=True)
    pictures: Mapped[bool] = mapped_column(default=False)
    """The pictures on its pages are wanted as files."""
    launches: Mapped[int] = mapped_column(default=0)
    """Launches since something last moved; spaces out the sweeper's further ones."""
    launch_due_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When the sweeper may launch the document (again) if nothing moves it; None: at once."""
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
    )

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    document_id: Mapped[str] = mapped_column(ForeignKey("documents.id", ondelete="CASCADE"))
    page: Mapped[int]
    """1-based place in the result."""
    page_source: Mapped[int]
    """1-based page of the source file."""
    status: Mapped[int] = mapped_column(default=int(PageStatus.PENDING))
    provider: Mapped[str] = mapped_column(String(60))
    model: Mapped[str] = mapped_column(String(120), default="")
    content: Mapped[str] = mapped_column(Text, default="")
    """Markdown. Kept while the page is retried, until there is a new one."""
    image_path: Mapped[str | None] = mapped_column(String(1000))
    error: Mapped[str | None] = mapped_column(Text)
    retry_count: Mapped[int] = mapped_column(default=0)
    """Attempts that failed, over the page's whole life."""
    use_cache: Mapped[bool] = mapped_column(default=True)
    """Off when a user asked for the page anew: the cache would give the text that did not please."""
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class PageLayout(Base):
    """What stands where on a page, for those who build on it. A table of its own: few read it, and it is large."""

    __tablename__ = "page_layouts"

    page_id: Mapped[int] = mapped_column(ForeignKey("pages.id", ondelete="CASCADE"), primary_key=True)
    data: Mapped[bytes] = mapped_column(LargeBinary)
    """JSON of `Answer.layout`, by zlib."""


class PageAttempt(Base):
    """Ledger: every attempt of a page, kept when the page is retried. Completed ones are the cache as well."""

    __tablename__ = "page_attempts"
    __table_args__ = (
        Index("ix_page_attempts_document_page", "document_id", "page"),
        Index("ix_page_attempts_cache_key", "cache_key"),
        Index("ix_page_attempts_created_at", "created_at"),
    )

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    document_id: Mapped[str] = mapped_column(ForeignKey("documents.id", ondelete="CASCADE"))
    page: Mapped[int]
    page_source: Mapped[int]
    provider: Mapped[str] = mapped_column(String(60))
    model: Mapped[str] = mapped_column(String(120))
    prompt_hash: Mapped[str] = mapped_column(String(64), default="")
    cache_key: Mapped[str | None] = mapped_column(String(64))
    cached: Mapped[bool] = mapped_column(default=False)
    """Taken over from an earlier attempt without a call."""
    status: Mapped[str] = mapped_column(String(20))
    """`completed`, or the kind of the error."""
    effective: Mapped[bool] = mapped_column(default=True)
    """False if the claim had been taken away: the result was recorded, but is not the page's."""
    error: Mapped[str | None] = mapped_column(Text)
    text: Mapped[str] = mapped_column(Text, default="")
    input_tokens: Mapped[int] = mapped_column(default=0)
    output_tokens: Mapped[int] = mapped_column(default=0)
    latency_ms: Mapped[int] = mapped_column(default=0)
    worker_id: Mapped[str] = mapped_column(String(200))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


DOCUMENTS = table_of(Document)
PAGES = table_of(Page)
ATTEMPTS = table_of(PageAttempt)
LAYOUTS = table_of(PageLayout)
