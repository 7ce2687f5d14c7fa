"""Fenced claims: a worker claims a unit by one compare-and-set, and settles it by another that names the claim."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, ClassVar
from uuid import uuid4

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Executable,
    Index,
    Integer,
    Select,
    String,
    Table,
    bindparam,
    literal_column,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from pipeline.engine.states import Event, Machine, State
from pipeline.engine.tables import UtcDateTime


def claims_index(table: str) -> Index:
    """Finds the few claimed rows of a table: sweepers ask every few seconds, and tables grow."""
    held = text("claim_id IS NOT NULL")
    return Index(f"ix_{table}_claimed", "worker_id", "lease_until", sqlite_where=held, postgresql_where=held)


def waits_index(table: str) -> Index:
    """Finds the few rows of a table that are due later."""
    waits = text("next_run_at IS NOT NULL")
    return Index(f"ix_{table}_next_run_at", "next_run_at", sqlite_where=waits, postgresql_where=waits)


class ClaimColumns:
    """Columns of a table whose rows can be claimed."""

    worker_id: Mapped[str | None] = mapped_column(String(200))
    """The process that works on the row: `hostname:pid:nonce`. A worker that starts again has another nonce."""
    claim_id: Mapped[str | None] = mapped_column(String(32))
    """The fence: a result under another claim is discarded."""
    request_id: Mapped[str | None] = mapped_column(String(64))
    """The delivery that holds the claim. When its message is delivered again, it first releases what it held."""
    lease_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    attempts: Mapped[int] = mapped_column(default=0)
    """Claims since a user last asked for the row; released ones do not count."""
    releases: Mapped[int] = mapped_column(default=0, server_default="0")
    """Releases since a user last asked for the row; each followed a failure of the provider."""
    released_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    next_run_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When the row can be claimed; None: at once."""


def _unknown(_: str) -> bool:
    return False


@dataclass(frozen=True)
class Owner:
    """Who claims: a process of a worker, for one delivery of a message."""

    worker_id: str
    """The process: `hostname:pid:nonce`. What a living one holds is given back by nobody else."""
    request_id: str
    gone: Callable[[str], bool] = field(default=_unknown, compare=False, repr=False)
    """Whether another process has certainly ended, by its id."""


@dataclass(frozen=True)
class Claim:
    """The right to settle what was claimed with it, until `expires_at`."""

    owner: Owner
    expires_at: datetime
    id: str = field(default_factory=lambda: uuid4().hex)

    @property
    def columns(self) -> dict[str, Any]:
        return {
            "worker_id": self.owner.worker_id,
            "request_id": self.owner.request_id,
            "claim_id": self.id,
            "lease_until": self.expires_at,
        }


FREE: dict[str, Any] = {"worker_id": None, "request_id": None, "claim_id": None, "lease_until": None}
"""Column values of an unclaimed row."""


@dataclass(frozen=True)
class Tries:
    """What a transaction claimed, over all its tries: it may have been committed though the answer was lost.

    `Database.run` puts it into each try's session, under `Tries.KEY`.
    """

    KEY: ClassVar[str] = "claims.tries"
    _now: set[str] = field(default_factory=set)
    _earlier: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, session: Session) -> "Tries":
        """Those of the session's transaction; none if it is not one that is repeated."""
        found = session.info.get(cls.KEY)
        return found if isinstance(found, cls) else cls()

    def begin(self) -> None:
        """Another try begins."""
        self._earlier.update(self._now)
        self._now.clear()

    def take_over(self, session: Session, table: Table, claim: Claim) -> list[Any]:
        """The rows that an earlier try claimed, held under `claim` from now on."""
        self._now.add(claim.id)
        if not self._earlier:
            return []
        mine = (table.c.worker_id == claim.owner.worker_id, table.c.claim_id.in_(self._earlier))
        return list(session.execute(update(table).where(*mine).values(**claim.columns).returning(*table.c)))

    def made(self, claim_id: str) -> bool:
        """Whether an earlier try made this claim."""
        return claim_id in self._earlier


def take(
    session: Session,
    table: Table,
    machine: Machine[State, Event],
    event: Event,
    *where: ColumnElement[bool],
    claim: Claim,
    order_by: ColumnElement[Any] | tuple[ColumnElement[Any], ...],
    limit: int,
    now: datetime,
    parameters: Mapping[str, Any] = MappingProxyType({}),
    **values: Any,
) -> list[Any]:
    """Claim up to `limit` rows that may take `event` and are due; the rows, in no particular order.

    Two callers never get the same row: the inner SELECT skips rows that another transaction has locked (PostgreSQL), or
    the transaction holds the only write lock (SQLite). If an earlier try of the transaction claimed rows, and was
    committed without an answer, it is those rows, be they more or less than `limit`. `parameters`: what bindparams in
    `where` stand for; conditions that stay the same objects have the statement built once.
    """
    if taken := Tries.of(session).take_over(session, table, claim):
        return taken
    order = order_by if isinstance(order_by, tuple) else (order_by,)
    computed = {name: value for name, value in values.items() if isinstance(value, ColumnElement)}
    plain = {name: value for name, value in values.items() if name not in computed}
    statement = _statement_of_take(table, machine, event, where, order, tuple(plain), tuple(computed.items()))
    given = {"due_by": now, "most": limit, **parameters, **_new(claim.columns), **_new(plain)}
    rows = list(session.connection().execute(statement, given))
    machine.note(session, table, event, (row.id for row in rows))
    return rows


def _new(values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"new_{name}": value for name, value in values.items()}


@lru_cache(maxsize=256)
def _statement_of_take(
    table: Table,
    machine: Machine[Any, Any],
    event: StrEnum,
    where: tuple[ColumnElement[bool], ...],
    order: tuple[ColumnElement[Any], ...],
    names: tuple[str, ...],
    computed: tuple[tuple[str, ColumnElement[Any]], ...],
) -> Executable:
    """Built once for conditions that are the same objects: in SQLite, whoever builds it holds the only write lock."""
    # A CTE, not a subquery: PostgreSQL may run a subquery once a row, and each run returns `limit` further rows.
    due = (
        select(table.c.id)
        .where(in_states(table, machine.sources(event)), is_due(table, bindparam("due_by")), *where)
        .order_by(*order)
        .limit(bindparam("most", type_=Integer))
        .with_for_update(skip_locked=True)
        .cte("due")
    )
    values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in (*FREE, *names)} | dict(computed)
    return machine.returning(
        table, event, table.c.id.in_(select(due.c.id)), attempts=table.c.attempts + 1, next_run_at=None, **values
    )


def in_states(table: Table, states: Iterable[Any]) -> ColumnElement[bool]:
    """The row is in one of these states, which the statement spells out: partial indexes serve only what does."""
    # Not parameters to be put in at last: that would be done anew each time the statement is executed.
    return table.c.status.in_([literal_column(value) for value in _spelt(states)])


def claimable_index(table: str, *columns: str, states: Iterable[Any]) -> Index:
    """Finds the units of a scope that may be claimed, in the order of claiming: the cost of a claim stays the same
    however far the scope is. `columns`: the scope's first. `states`: those that a claim leads from."""
    open_ = text(f"status IN ({', '.join(_spelt(states))})")
    return Index(f"ix_{table}_claimable", *columns, sqlite_where=open_, postgresql_where=open_)


def _spelt(states: Iterable[Any]) -> list[str]:
    return [repr(value) for value in sorted(state.value for state in states)]


def is_due(table: Table, now: datetime | BindParameter[Any]) -> ColumnElement[bool]:
    """The row may be claimed now."""
    return or_(table.c.next_run_at.is_(None), table.c.next_run_at <= now)


def anything(claimed: Iterable[Table], *open_: tuple[Table, ColumnElement[bool]]) -> Select[bool]:
    """Whether a row of these tables is claimed, or one of a table meets its condition in `open_`. Make it once.

    Each is looked for by itself: for an OR of conditions, databases read the whole table.
    """
    held = [(table, table.c.claim_id.is_not(None)) for table in claimed]
    return select(or_(*(select(table.c.id).where(which).exists() for table, which in (*held, *open_))))


def left_behind(session: Session, table: Table, owner: Owner) -> list[str]:
    """The claims that an earlier delivery of the owner's message left behind.

    Its process has certainly ended, or is this one, which works on a message once at a time (`engine.deliveries`). What
    any other process holds is left alone: it may live and be in its call, which must not be paid for again. If it is
    dead, the sweeper notices.
    """
    tries = Tries.of(session)
    rows = session.execute(_statement_of_left_behind(table), {"request": owner.request_id})
    found = [row for row in rows if not tries.made(row.claim_id)]
    holders = {row.worker_id for row in found}
    ended = {holder for holder in holders if holder == owner.worker_id or owner.gone(holder)}
    return sorted({row.claim_id for row in found if row.worker_id in ended})


@cache
def _statement_of_left_behind(table: Table) -> Executable:
    mine = (table.c.request_id == bindparam("request"), table.c.claim_id.is_not(None))
    return select(table.c.claim_id, table.c.worker_id).where(*mine)


def new_claim(owner: Owner, now: datetime, lease_s: float) -> Claim:
    """A claim for `owner` of `lease_s` seconds."""
    return Claim(owner, now + timedelta(seconds=lease_s))
