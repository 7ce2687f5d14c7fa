"""What each caller of the API has spent: who asked last for which work, and what calls for that have cost since.

Work goes on after the request that asked for it, in other processes; so this is summed up from the record of calls.
"""

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Index, Select, String, and_, delete, func, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from pipeline.engine.tables import Base, UtcDateTime, portions, table_of, upsert
from pipeline.engine.traces import SEARCH, AiCall
from pipeline.storage.context import Context
from pipeline.storage.retention import Retention

KEPT_DAYS = 90
"""How long it is known who asked: work that takes longer is nobody's."""
CALLER: ContextVar[str] = ContextVar("api_caller", default="")
"""Whose request this thread works on. A call that is made at once, for a search, is written down as theirs."""
Within = Callable[[Select[Any]], Select[Any]]
"""The scopes of calls for what a caller asked for, where a flow calls for several of them together."""


class ApiWork(Base):
    """Who asked for something that may cost money: the last one, and since when."""

    __tablename__ = "api_work"
    __table_args__ = (Index("ix_api_work_owner_since", "owner", "since"),)

    flow: Mapped[str] = mapped_column(String(40), primary_key=True)
    item_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    owner: Mapped[str] = mapped_column(String(64))
    since: Mapped[datetime] = mapped_column(UtcDateTime)


WORK, CALLS = table_of(ApiWork), table_of(AiCall)


def note(context: Context, owner: str, flow: str, item_ids: Iterable[object], since: datetime) -> None:
    """Charge the caller for the calls for these items from `since` on. A repeated note changes nothing."""
    if ids := sorted({str(one) for one in item_ids}):
        context.db.run(lambda session: note_in(session, owner, flow, ids, since))


def note_in(session: Session, owner: str, flow: str, item_ids: Iterable[str], since: datetime) -> None:
    """The same, in the transaction of the request."""
    for some in portions(item_ids):
        mine = select(WORK.c.item_id).where(WORK.c.flow == flow, WORK.c.item_id.in_(some), WORK.c.owner == owner)
        known = set(session.scalars(mine))
        rows = [{"flow": flow, "item_id": one, "owner": owner[:64], "since": since} for one in some if one not in known]
        if rows:
            upsert(session, WORK, rows)


def spent(context: Context, owner: str, since: datetime, within: dict[str, Within]) -> float:
    """What this caller's requests have cost since then, by the providers' price lists.

    `within`: flows in which a call is for several items, each of which pays for all of it.
    """
    asked = select(WORK.c.item_id).where(WORK.c.owner == owner)
    own = and_(WORK.c.flow == CALLS.c.flow, WORK.c.item_id == CALLS.c.scope_id, WORK.c.since <= CALLS.c.created_at)
    paid: list[ColumnElement[bool]] = [
        select(WORK.c.flow).where(own, WORK.c.owner == owner, WORK.c.flow.not_in(within)).exists(),
        and_(CALLS.c.scope_id == SEARCH, CALLS.c.unit == owner),
    ]
    paid += [
        and_(CALLS.c.flow == flow, CALLS.c.scope_id.in_(of(asked.where(WORK.c.flow == flow))))
        for flow, of in within.items()
    ]
    with context.db.read() as session:
        each = [select(func.sum(CALLS.c.cost)).where(CALLS.c.created_at >= since, one) for one in paid]
        return sum(float(session.execute(one).scalar_one() or 0) for one in each)


def expired(context: Context) -> Retention:
    """What nobody asked for lately, for clean-up."""
    over = WORK.c.since <= context.db.now() - timedelta(days=KEPT_DAYS)

    def due(context: Context) -> int:
        with context.db.read() as session:
            return int(session.execute(select(func.count()).select_from(WORK).where(over)).scalar_one())

    def remove(context: Context) -> int:
        gone = delete(WORK).where(over).returning(WORK.c.item_id)
        return context.db.run(lambda session: len(session.execute(gone).all()))

    return Retention("who asked for what", f"{KEPT_DAYS} days", due, remove)
