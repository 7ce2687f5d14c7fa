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
    """Return an index of the few claimed rows of a table: sweeps read them every few seconds, and tables grow."""
    held = text("claim_id IS NOT NULL")
    return Index(f"ix_{table}_claimed", "worker_id", "lease_until", sqlite_where=held, postgresql_where=held)


def waits_index(table: str) -> Index:
    """Return an index of the few rows of a table that are due later."""
    waits = text("next_run_at IS NOT NULL")
    return Index(f"ix_{table}_next_run_at", "next_run_at", sqlite_where=waits, postgresql_where=waits)


class ClaimColumns:
    """Columns of a table whose rows can be claimed."""

    worker_id: Mapped[str | None] = mapped_column(String(200))
    """The process that works on the row: `hostname:pid:nonce`. A restarted worker has another nonce."""
    claim_id: Mapped[str | None] = mapped_column(String(32))
    """The fence: the row rejects a result under another claim."""
    request_id: Mapped[str | None] = mapped_column(String(64))
    """The delivery that holds the claim. When the broker redelivers its message, the worker first frees its claims."""
    lease_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    attempts: Mapped[int] = mapped_column(default=0)
    """Claims since a user last requested the row, without released claims."""
    releases: Mapped[int] = mapped_column(default=0, server_default="0")
    """Releases since a user last requested the row; each followed a failure of the provider."""
    released_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    next_run_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """When the row can be claimed; None: at once."""


def _unknown(_: str) -> bool:
    return False


@dataclass(frozen=True)
class Owner:
    """The holder of a claim: a process of a worker, for one delivery of a message."""

    worker_id: str
    """The process: `hostname:pid:nonce`. While it lives, no other process gives back its claims."""
    request_id: str
    has_ended: Callable[[str], bool] = field(default=_unknown, compare=False, repr=False)
    """Whether another process has certainly ended; takes its id."""


@dataclass(frozen=True)
class Claim:
    """The right to settle the units claimed with it, until `expires_at`."""

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
    """The claims of a transaction over all its tries: an earlier try may have committed although its answer was lost.

    `Database.run` puts it into each try's session, under `Tries.KEY`.
    """

    KEY: ClassVar[str] = "claims.tries"
    _now: set[str] = field(default_factory=set)
    _earlier: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, session: Session) -> "Tries":
        """Return the claims of the session's transaction; a new, empty object if `Database.run` does not repeat it."""
        tries = session.info.get(cls.KEY)
        return tries if isinstance(tries, cls) else cls()

    def begin(self) -> None:
        """Begin another try: the claims so far are those of earlier tries."""
        self._earlier.update(self._now)
        self._now.clear()

    def take_over(self, session: Session, table: Table, claim: Claim) -> list[Any]:
        """Move the rows that an earlier try claimed to `claim`, and return them."""
        self._now.add(claim.id)
        if not self._earlier:
            return []
        earlier = (table.c.worker_id == claim.owner.worker_id, table.c.claim_id.in_(self._earlier))
        return list(session.execute(update(table).where(*earlier).values(**claim.columns).returning(*table.c)))

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
    """Claim up to `limit` rows that may take `event` and are due at `now`, the database's time; return them in no
    particular order. Each claim counts one more attempt. `values`: further columns to set.

    Two callers never get the same row: the inner SELECT skips rows that another transaction has locked (PostgreSQL), or
    the transaction holds the only write lock (SQLite). If an earlier try of the transaction claimed rows, and its
    commit had no answer, returns those rows, however many. `parameters`: values of bindparams in `where`; conditions
    that stay the same objects share one built statement.
    """
    if taken_over := Tries.of(session).take_over(session, table, claim):
        return taken_over
    order = order_by if isinstance(order_by, tuple) else (order_by,)
    computed = {name: value for name, value in values.items() if isinstance(value, ColumnElement)}
    plain = {name: value for name, value in values.items() if name not in computed}
    statement = _statement_of_take(table, machine, event, where, order, tuple(plain), tuple(computed.items()))
    bound = {"due_by": now, "most": limit, **parameters, **_new(claim.columns), **_new(plain)}
    rows = list(session.connection().execute(statement, bound))
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
    """Return the statement of `take`, built once for the same condition objects: building it holds SQLite's only write
    lock."""
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
    """Condition: the row is in one of these states, spelt out as literals. Partial indexes serve no parameters."""
    # Not an expanding parameter: SQLAlchemy would expand it at each execution.
    return table.c.status.in_([literal_column(value) for value in _spelt(states)])


def claimable_index(table: str, *columns: str, states: Iterable[Any]) -> Index:
    """Return an index of a scope's claimable units in the order of claiming, so that a claim costs the same however far
    the scope is. `columns`: the scope's first. `states`: the states that a claim leads from."""
    open_ = text(f"status IN ({', '.join(_spelt(states))})")
    return Index(f"ix_{table}_claimable", *columns, sqlite_where=open_, postgresql_where=open_)


def _spelt(states: Iterable[Any]) -> list[str]:
    return [repr(value) for value in sorted(state.value for state in states)]


def is_due(table: Table, now: datetime | BindParameter[Any]) -> ColumnElement[bool]:
    """Condition: the row is due: its `next_run_at` is NULL or has come at `now`."""
    return or_(table.c.next_run_at.is_(None), table.c.next_run_at <= now)


def anything(claimed: Iterable[Table], *open_: tuple[Table, ColumnElement[bool]]) -> Select[bool]:
    """Return a query for one boolean: whether a table in `claimed` has a claimed row, or a table in `open_` has a row
    that meets its condition. Build it once.

    One EXISTS for each condition: for an OR of conditions, databases read the whole table.
    """
    held = [(table, table.c.claim_id.is_not(None)) for table in claimed]
    return select(or_(*(select(table.c.id).where(which).exists() for table, which in (*held, *open_))))


def left_behind(session: Session, table: Table, owner: Owner) -> list[str]:
    """Return the ids of claims that an earlier delivery of the owner's message left behind.

    Its process has certainly ended, or is this process, which never works on a message twice at once
    (`engine.deliveries`). Leaves the claims of other processes alone: they may be in a paid call. If they are dead, the
    sweep notices.
    """
    tries = Tries.of(session)
    rows = session.execute(_statement_of_left_behind(table), {"request": owner.request_id})
    held = [row for row in rows if not tries.made(row.claim_id)]
    holders = {row.worker_id for row in held}
    ended = {holder for holder in holders if holder == owner.worker_id or owner.has_ended(holder)}
    return sorted({row.claim_id for row in held if row.worker_id in ended})


@cache
def _statement_of_left_behind(table: Table) -> Executable:
    of_message = (table.c.request_id == bindparam("request"), table.c.claim_id.is_not(None))
    return select(table.c.claim_id, table.c.worker_id).where(*of_message)


def new_claim(owner: Owner, now: datetime, lease_s: float) -> Claim:
    """Return a claim of `owner` that lasts `lease_s` seconds from `now`, with no rows yet: `take` uses it."""
    return Claim(owner, now + timedelta(seconds=lease_s))
