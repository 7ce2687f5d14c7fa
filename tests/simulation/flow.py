"""The simulated flow: scopes of units, some behind a gate, and one piece of work at the end of each scope."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ForeignKey, String, bindparam, func, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from pipeline.engine import work as kernel
from pipeline.engine.claims import ClaimColumns, claimable_index, claims_index, waits_index
from pipeline.engine.launch import Wanted
from pipeline.engine.retry import Policy
from pipeline.engine.states import Machine
from pipeline.engine.tables import UtcDateTime, table_of
from pipeline.engine.transaction import Tx
from pipeline.engine.work import Changes, Work
from pipeline.flows.flow import Flow

CPU, MERGE = "cpu", "merge"
"""Queues without a gate: of pages, and of merges."""
MAX_ATTEMPTS = 4
LEASE_S = 30.0


class State(StrEnum):
    OPEN = "open"
    WORKING = "working"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"


class ScopeState(StrEnum):
    OPEN = "open"
    READY = "ready"
    MERGING = "merging"
    DONE = "done"
    FAILED = "failed"


class Event(StrEnum):
    CLAIM = "claim"
    DONE = "done"
    FAIL = "fail"
    WAIT = "wait"
    GIVE_BACK = "give_back"
    READY = "ready"


UNIT: Machine[State, Event] = Machine(
    "unit",
    {
        (State.OPEN, Event.CLAIM): State.WORKING,
        (State.WAITING, Event.CLAIM): State.WORKING,
        (State.WORKING, Event.DONE): State.DONE,
        (State.WORKING, Event.FAIL): State.FAILED,
        (State.WORKING, Event.WAIT): State.WAITING,
        (State.WORKING, Event.GIVE_BACK): State.OPEN,
    },
)
SCOPE: Machine[ScopeState, Event] = Machine(
    "scope",
    {
        (ScopeState.OPEN, Event.READY): ScopeState.READY,
        (ScopeState.READY, Event.CLAIM): ScopeState.MERGING,
        (ScopeState.MERGING, Event.DONE): ScopeState.DONE,
        (ScopeState.MERGING, Event.FAIL): ScopeState.FAILED,
        (ScopeState.MERGING, Event.WAIT): ScopeState.READY,
        (ScopeState.MERGING, Event.GIVE_BACK): ScopeState.READY,
    },
)


class Base(DeclarativeBase):
    pass


class ScopeRow(ClaimColumns, Base):
    __tablename__ = "sim_scopes"

    id: Mapped[str] = mapped_column(String(20), primary_key=True)
    status: Mapped[str] = mapped_column(String(10))
    queue: Mapped[str] = mapped_column(String(40))
    places: Mapped[int]
    total: Mapped[int]
    done: Mapped[int] = mapped_column(default=0)
    failed: Mapped[int] = mapped_column(default=0)
    merged: Mapped[int] = mapped_column(default=0)
    error: Mapped[str | None]
    updated_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class UnitRow(ClaimColumns, Base):
    __tablename__ = "sim_units"
    __table_args__ = (
        claims_index("sim_units"),
        waits_index("sim_units"),
        claimable_index("sim_units", "scope_id", "releases", "number", states=UNIT.sources(Event.CLAIM)),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    scope_id: Mapped[str] = mapped_column(ForeignKey("sim_scopes.id"))
    number: Mapped[int]
    status: Mapped[str] = mapped_column(String(10))
    kind: Mapped[str] = mapped_column(String(10))
    result: Mapped[str | None]
    error: Mapped[str | None]
    updated_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


UNITS, SCOPES = table_of(UnitRow), table_of(ScopeRow)


# Statements are built once, because building them would take most of a seed's time.
_LOCK = select(SCOPES).where(SCOPES.c.id == bindparam("scope")).with_for_update()
_COUNT = (
    update(SCOPES)
    .where(SCOPES.c.id == bindparam("scope"))
    .values(done=SCOPES.c.done + bindparam("more"), failed=SCOPES.c.failed + bindparam("worse"))
    .returning(SCOPES.c.done + 0, SCOPES.c.failed + 0, SCOPES.c.total)
)
_MERGE = update(SCOPES).where(SCOPES.c.id == bindparam("scope")).values(merged=SCOPES.c.merged + 1)


def lock(session: Session, scope_id: Any) -> Any | None:
    """The scope's row, locked."""
    return session.execute(_LOCK, {"scope": scope_id}).first()


def _count(tx: Tx, scope: Any, changes: Changes) -> None:
    done, failed = len(changes.done), len(changes.failed)
    if not done and not failed:
        return
    counted = {"scope": scope.id, "more": done, "worse": failed}
    all_done, all_failed, total = tx.connection().execute(_COUNT, counted).one()
    if all_done + all_failed >= total:
        SCOPE.move(tx, SCOPES, Event.READY, SCOPES.c.id == scope.id, updated_at=tx.now)


def _merged(tx: Tx, scope: Any, changes: Changes) -> None:
    if changes.done:
        tx.connection().execute(_MERGE, {"scope": scope.id})


def _policy(_settings: Any) -> Policy:
    return Policy((1.0, 2.0, 4.0))


def _work(name: str, table: Any, machine: Any, **fields: Any) -> Work:
    return Work(
        name,
        table,
        machine,
        claim=Event.CLAIM,
        done=Event.DONE,
        fail=Event.FAIL,
        wait=Event.WAIT,
        give_back=Event.GIVE_BACK,
        lock=lock,
        policy=_policy,
        lease_s=lambda _settings: LEASE_S,
        lost="its worker was lost",
        **fields,
    )


PAGES = _work("page", UNITS, UNIT, scope=UNITS.c.scope_id, order=(UNITS.c.releases, UNITS.c.number), after=_count)
MERGES = _work("merge", SCOPES, SCOPE, scope=SCOPES.c.id, order=(SCOPES.c.id,), after=_merged)


_NOW = bindparam("now", type_=UtcDateTime)
_WAITED = (
    select(UNITS.c.scope_id).where(PAGES.claimable, UNITS.c.next_run_at <= _NOW).distinct().order_by(UNITS.c.scope_id)
)
_RUNNABLE = (
    select(SCOPES.c.id, SCOPES.c.queue).join(UNITS, UNITS.c.scope_id == SCOPES.c.id).where(PAGES.due(_NOW)).distinct()
)
_TO_MERGE = select(SCOPES.c.id).where(MERGES.due(_NOW))
_WANTED = (
    select(
        SCOPES,
        *(
            select(func.count(UNITS.c.id)).where(UNITS.c.scope_id == SCOPES.c.id, which).scalar_subquery().label(name)
            for name, which in (("count_due", PAGES.due(_NOW)), ("count_held", PAGES.working))
        ),
    )
    .where(SCOPES.c.id.in_(bindparam("scopes", expanding=True)))
    .order_by(SCOPES.c.id)
)


def _due(context: Any) -> Iterator[str]:
    now = context.db.now()
    with context.db.read() as session:
        scope_ids = list(session.execute(_WAITED, {"now": now}).scalars())
    yield from scope_ids


def _next_wait_s(context: Any) -> float | None:
    with context.db.read() as session:
        return kernel.next_due(session, PAGES)


def _runnable(context: Any, closed_queues: Collection[str]) -> Iterator[str]:
    now = context.db.now()
    with context.db.read() as session:
        scope_ids = {row.id for row in session.execute(_RUNNABLE, {"now": now}) if row.queue not in closed_queues}
        scope_ids |= set(session.execute(_TO_MERGE, {"now": now}).scalars())
    yield from sorted(scope_ids)


FLOW = Flow("sim", _due, _next_wait_s, works=(PAGES, MERGES), runnable=_runnable)


def wanted(context: Any, scopes: Sequence[str], merge_priority: int) -> list[Wanted]:
    """Return the messages that these scopes' rows ask for now."""
    now, messages = context.db.now(), []
    with context.db.read() as session:
        for row in session.execute(_WANTED, {"now": now, "scopes": list(scopes)}).all():
            if row.status == ScopeState.OPEN and row.count_due:
                messages.append(Wanted(key(row.id), row.queue, min(row.places, row.count_due + row.count_held)))
            elif row.status == ScopeState.READY:
                messages.append(Wanted(key(row.id), MERGE, 1, merge_priority))
    return messages


_STANDS = {
    work: select(
        select(SCOPES.c.status).where(SCOPES.c.id == bindparam("scope")).scalar_subquery(),
        select(work.table.c.id).where(work.in_scope(bindparam("scope")), work.due(_NOW)).exists(),
    )
    for work in (PAGES, MERGES)
}


def stands(tx: Tx, work: Work, scope_id: str) -> tuple[str, bool]:
    """A scope's state, and whether any of its units is due."""
    status, more = tx.execute(_STANDS[work], {"scope": scope_id, "now": tx.now}).one()
    return status, more


def key(scope_id: str) -> str:
    """A scope among places."""
    return f"sim:{scope_id}"
