"""Tables: vectors, their codes (small enough for memory), and the counters of their changes."""

from datetime import datetime

from sqlalchemy import BigInteger, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from pipeline.engine.tables import Base, RowId, UtcDateTime, table_of


class StoredVector(Base):
    """One vector. An item of a kind has at most one; another model's vector replaces it."""

    __tablename__ = "vectors"
    __table_args__ = (Index("ix_vectors_kind_model", "kind", "model"),)

    kind: Mapped[str] = mapped_column(String(40), primary_key=True)
    """The kind of its item, such as `song`."""
    item_id: Mapped[int] = mapped_column(RowId, primary_key=True)
    model: Mapped[str] = mapped_column(String(200))
    """Only vectors of one model can be compared."""
    dims: Mapped[int]
    data: Mapped[bytes] = mapped_column(LargeBinary)
    """`dims` little-endian float32."""
    updated_at: Mapped[datetime] = mapped_column(UtcDateTime)


class VectorCode(Base):
    """The code of one vector, in a separate table so that codes are read without vectors."""

    __tablename__ = "vector_codes"
    # Without rowid, so that a kind's codes lie side by side.
    __table_args__ = (Index("ix_vector_codes_kind_version", "kind", "version"), {"sqlite_with_rowid": False})

    kind: Mapped[str] = mapped_column(String(40), primary_key=True)
    item_id: Mapped[int] = mapped_column(RowId, primary_key=True)
    model: Mapped[str] = mapped_column(String(200))
    dims: Mapped[int]
    code: Mapped[bytes] = mapped_column(LargeBinary)
    """See `codes`."""
    version: Mapped[int] = mapped_column(BigInteger)
    """The kind's version that wrote it; 0 until just before the commit."""


class VectorVersion(Base):
    """Counts the transactions that changed vectors of a kind. See `changes`."""

    __tablename__ = "vector_versions"

    kind: Mapped[str] = mapped_column(String(40), primary_key=True)
    version: Mapped[int] = mapped_column(BigInteger)
    removed: Mapped[int] = mapped_column(BigInteger)
    """The last version that removed vectors."""


VECTORS = table_of(StoredVector)
CODES = table_of(VectorCode)
VERSIONS = table_of(VectorVersion)
