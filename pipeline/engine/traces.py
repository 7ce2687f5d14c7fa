"""A row for each call to an AI service, with its purpose, model, duration, tokens and outcome; and totals."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Index, String, Text, event, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Mapped, Session, mapped_column

from pipeline.engine import accounts, kept_answers
from pipeline.engine.errors import PenstockError, told
from pipeline.engine.tables import Base, RowId, UtcDateTime, storable, table_of

PREVIEW_CHARS = 500
MAX_ERROR_CHARS = 2000
SEARCH = "search"
"""The scope of calls for searches. Their unit is the API caller's id; 0 without one."""
TRIAL = "doctor"
"""The scope of calls with which `penstock doctor` tries a provider."""
_ERASED: dict[str, Any] = {"preview": "", "error": None}
_KEPT = "traces.kept"
_BESIDE = frozenset({"kept", "of"})
"""Keys of a trace without a column: the file of its answer, and the items for `accounts.charge`."""


class AiCall(Base):
    """One call to an AI service. Previews are cut; images and keys are never stored."""

    __tablename__ = "ai_calls"
    __table_args__ = (
        Index("ix_ai_calls_call_id", "call_id", unique=True),
        Index("ix_ai_calls_unit", "flow", "scope_id", "unit"),
        Index("ix_ai_calls_created_at", "created_at"),
        Index("ix_ai_calls_provider_created_at", "provider", "created_at"),
        Index("ix_ai_calls_queue_created_at", "queue", "created_at"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    call_id: Mapped[str | None] = mapped_column(String(32))
    """The call's key, set before it is sent, so that repeated writes leave one row. None: a row of an older version."""
    flow: Mapped[str] = mapped_column(String(40))
    scope_id: Mapped[str] = mapped_column(String(64))
    unit: Mapped[str] = mapped_column(String(64))
    capability: Mapped[str] = mapped_column(String(20))
    """`vision`, `text` or `embeddings`."""
    operation: Mapped[str] = mapped_column(String(60))
    provider: Mapped[str] = mapped_column(String(60))
    queue: Mapped[str] = mapped_column(String(120), default="", server_default="")
    """The queue whose gate admitted the call."""
    model: Mapped[str] = mapped_column(String(120))
    status: Mapped[str] = mapped_column(String(20))
    """`ok`, or the kind of the error."""
    error: Mapped[str | None] = mapped_column(Text)
    """The error. For a successful call: the service's implausible token counts, if any."""
    latency_ms: Mapped[int] = mapped_column(default=0)
    input_tokens: Mapped[int] = mapped_column(default=0)
    output_tokens: Mapped[int] = mapped_column(default=0)
    cost: Mapped[float] = mapped_column(default=0.0)
    """By the provider's price list, in its currency."""
    preview: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    """Start of the call."""


class CallTotal(Base):
    """Totals of calls of one kind and latency, including calls whose rows retention removed.

    All are whole numbers: sums of fractions depend on their order, and a counter must never shrink.
    """

    __tablename__ = "ai_call_totals"

    flow: Mapped[str] = mapped_column(String(40), primary_key=True)
    provider: Mapped[str] = mapped_column(String(60), primary_key=True)
    capability: Mapped[str] = mapped_column(String(20), primary_key=True)
    status: Mapped[str] = mapped_column(String(20), primary_key=True)
    le_ms: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """The upper bound of the calls' latency; the next lower bound is the other. 0: beyond the highest."""
    calls: Mapped[int] = mapped_column(BigInteger)
    latency_ms: Mapped[int] = mapped_column(BigInteger)
    input_tokens: Mapped[int] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)
    cost_nano: Mapped[int] = mapped_column(BigInteger)
    """In thousand-millionths of the currency."""


class CallCursor(Base):
    """How far the totals count the calls on record. One row, created on first use."""

    __tablename__ = "ai_call_cursor"

    only: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    counted_to: Mapped[int] = mapped_column(BigInteger, default=0)
    """The totals count exactly the calls up to this id."""
    next_to: Mapped[int] = mapped_column(BigInteger, default=0)
    """The totals may count calls up to this id once every transaction up to `horizon` has ended."""
    horizon: Mapped[int] = mapped_column(BigInteger, default=0)


def message_of(error: Exception) -> str:
    """An error's text for rows: storable in every database, and cut."""
    text = str(error) if isinstance(error, PenstockError) else told(error)
    return storable(text or type(error).__name__)[:MAX_ERROR_CHARS]


def preview(text: str) -> str:
    """Return the first `PREVIEW_CHARS` characters of a text, for people who read traces."""
    return text if len(text) <= PREVIEW_CHARS else text[: PREVIEW_CHARS - 1] + "…"


def erase(session: Session, *which: ColumnElement[bool]) -> None:
    """Blank the texts in matching traces, because their subject was deleted. Costs stay."""
    session.execute(update(AiCall).where(*which).values(**_ERASED))


def record(session: Session, trace: Mapping[str, Any] | None, *, deleted: bool = False) -> bool:
    """Write a call's row, also if its result is discarded, and charge the callers: it was paid for. Does nothing
    without a trace.

    Returns whether the row is new: a repeated transaction finds its own. `deleted`: the call's subject was deleted
    during the call, so the row keeps no texts. The commit of the row removes the file `trace["kept"]`.
    """
    return bool(record_all(session, [{**trace, **(_ERASED if deleted else {})}])) if trace is not None else False


def record_all(session: Session, traces: Sequence[Mapping[str, Any]]) -> set[str]:
    """Write a row for each call whose `call_id` has none, and charge only these to the last callers who requested the
    work, so a repeated call is not charged twice. Return the `call_id`s of the new rows.

    The commit removes the files `trace["kept"]` of all calls.
    """
    if not traces:
        return set()
    session.info.setdefault(_KEPT, []).extend(trace["kept"] for trace in traces if trace.get("kept"))
    rows = [{name: value for name, value in trace.items() if name not in _BESIDE} for trace in traces]
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    new = set(session.connection().execute(_RECORD[is_sqlite], rows).scalars())
    accounts.charge(session, [trace for trace in traces if trace.get("call_id") in new])
    return new


@event.listens_for(Session, "after_commit")
def _discard_kept(session: Session) -> None:
    for path in session.info.pop(_KEPT, ()):
        kept_answers.discard(path)


def _recorded(*, is_sqlite: bool) -> Any:
    insert: Any = sqlite.insert if is_sqlite else postgresql.insert
    calls = table_of(AiCall)
    return insert(calls).on_conflict_do_nothing(index_elements=["call_id"]).returning(calls.c.call_id)


_RECORD = {is_sqlite: _recorded(is_sqlite=is_sqlite) for is_sqlite in (False, True)}
"""Built once, outside of transactions: building a statement in a transaction holds SQLite's only write lock."""
