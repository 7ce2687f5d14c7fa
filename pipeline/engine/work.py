"""A kind of unit of work, as data, and the few functions that claim, settle and free units of every kind.

A unit is a row with `engine.claims.ClaimColumns`. Units belong to a scope (a document, a batch, a run). A transaction
locks the scope's row before its units: so claims, results, counters and a user's commands on one scope serialize, and
exactly one transaction settles its last unit. A claimed unit is the row that the claim returned.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import uuid4

from sqlalchemy import BindParameter, ColumnElement, Table, and_, bindparam, func, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from pipeline.engine import claims, journal, kept_answers
from pipeline.engine.claims import FREE, Owner
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.isolation import isolated
from pipeline.engine.retry import Drop, GiveUp, Past, Policy, Release, RetryAt, decide
from pipeline.engine.states import Machine
from pipeline.engine.traces import message_of
from pipeline.engine.transaction import ReadTx, Tx

Result = TypeVar("Result")
REFUSED_AT_ONCE = 500
Condition = Callable[[datetime], ColumnElement[bool]]
"""Returns a condition on units at this time."""


class Transactions(Protocol):
    """The source of transactions: `storage.database.Database`."""

    def run(self, work: Callable[[Tx], Result], *, patience_s: float = ...) -> Result:
        """Run `work` in a transaction and return its result. Repeats it for up to `patience_s` while the database is
        busy, locked or unreachable.

        `work` must be safe to repeat: an earlier try may have committed before its answer was lost.
        """

    def read(self) -> AbstractContextManager[ReadTx]:
        """Open a transaction that only reads."""


@dataclass(frozen=True)
class Changes:
    """The ids of one scope's units that a transaction changed, by the kind of change."""

    done: tuple[Any, ...] = ()
    failed: tuple[Any, ...] = ()
    waiting: tuple[Any, ...] = ()
    """Failed or refused units, due again at their own times."""
    freed: tuple[Any, ...] = ()
    """Units given back, because their worker was lost or ended, or because their result is no longer needed."""
    moved: tuple[Any, ...] = ()
    """Units that another event moved, such as the end of a step."""
    retry_in_s: float | None = None
    """Seconds until the first of the waiting units is due."""
    error: str = ""
    """The error of the last failed or freed unit."""
    stuck: tuple[str, ...] = ()
    """The former states of units that were given back."""

    @property
    def ids(self) -> tuple[Any, ...]:
        """The ids of all these units."""
        return (*self.done, *self.failed, *self.waiting, *self.freed, *self.moved)

    def __bool__(self) -> bool:
        return bool(self.ids)


def _no_consequence(_tx: Tx, _scope: Any, _changes: Changes) -> None:
    """Do nothing after units were settled."""


class Scope(NamedTuple):
    """A scope without a row."""

    id: Any


@dataclass(frozen=True, eq=False)
class Work:
    """One kind of unit. Events are those of `machine`."""

    name: str
    table: Table
    machine: Machine[Any, Any]
    claim: StrEnum
    done: StrEnum
    fail: StrEnum
    wait: StrEnum
    give_back: StrEnum
    scope: ColumnElement[Any]
    """The column that names a unit's scope."""
    lock: Callable[[Session, Any], Any | None]
    """Locks the row of a scope, by its `id`, until the transaction ends, and returns it; None if it was deleted."""
    order: tuple[ColumnElement[Any], ...]
    """The order of claiming within a scope."""
    policy: Callable[[Any], Policy]
    """Returns the policy of retries for these settings."""
    lease_s: Callable[[Any], float]
    """Returns the lease of a claim for these settings, longer than any call takes."""
    lost: str
    """The error text of a unit whose worker was lost."""
    after: Callable[[Tx, Any, Changes], None] = _no_consequence
    """Updates the scope in the same transaction: its counters, and its state after its last unit."""
    given_back: Mapping[str, Any] = field(default_factory=dict)
    """Further columns of a unit that is given back."""
    where: tuple[ColumnElement[bool], ...] = ()
    """Conditions that select this kind's units in the table."""

    @cached_property
    def working(self) -> ColumnElement[bool]:
        """Condition: a unit of this kind is held."""
        states = claims.in_states(self.table, self.machine.sources(self.done))
        return and_(self.table.c.claim_id.is_not(None), states, *self.where)

    @cached_property
    def claimable(self) -> ColumnElement[bool]:
        """Condition: a unit is claimable, due or not. The state may not suffice: a run that syncs keeps its state."""
        states = claims.in_states(self.table, self.machine.sources(self.claim))
        return and_(states, self.table.c.claim_id.is_(None), *self.where)

    def waits(self, when: ColumnElement[bool]) -> ColumnElement[bool]:
        """Condition: a unit is claimable at its own time, which matches `when`. Few units have a time: databases must
        start from these rows: `coalesce` keeps them off the indexes of states."""
        state = func.coalesce(self.table.c.status, self.table.c.status)
        open_ = [source.value for source in self.machine.sources(self.claim)]
        return and_(when, state.in_(open_), self.table.c.claim_id.is_(None), *self.where)

    def due(self, now: datetime | BindParameter[Any]) -> ColumnElement[bool]:
        """Condition: a unit is claimable now."""
        return and_(self.claimable, claims.is_due(self.table, now))

    def in_scope(self, scope_id: Any) -> ColumnElement[bool]:
        """Condition: units of one scope."""
        return self.scope.is_(None) if scope_id is None else self.scope == scope_id


class Unit(Protocol):
    """A claimed unit: its row, or a flow's object with the same attributes."""

    @property
    def id(self) -> Any:
        """The row's id."""

    @property
    def attempts(self) -> int:
        """The number of attempts, including this one."""

    @property
    def claim_id(self) -> str:
        """The id of the claim, which the outcome must name."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a claimed unit. `event`: the event to take instead of `done`."""

    unit: Unit
    error: UnitError | None = None
    event: StrEnum | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    """Further columns of the row."""


def claim(
    tx: Tx,
    work: Work,
    scope: Any,
    owner: Owner,
    *where: ColumnElement[bool],
    limit: int = 1,
    parameters: Mapping[str, Any] = MappingProxyType({}),
    **values: Any,
) -> list[Any]:
    """Claim up to `limit` due units of a locked scope, each for one more attempt; return their rows in the order of
    `work.order`. `values`: further columns to set. `parameters`: values of bindparams in `where`.

    With a `limit` above 1, claims units without attempts, or else a single one with attempts: a unit that kills its
    worker must not spend the attempts of other units claimed with it.
    """
    claimable, untried = _conditions_of_claim(work, scope.id is None)
    bound = parameters if scope.id is None else {**parameters, "of_scope": scope.id}
    claim_as = claims.new_claim(owner, tx.now, work.lease_s(tx.settings))

    def take(most: int, *further: ColumnElement[bool]) -> list[Any]:
        return claims.take(
            tx,
            work.table,
            work.machine,
            work.claim,
            *claimable,
            *where,
            *further,
            claim=claim_as,
            order_by=work.order,
            limit=most,
            now=tx.now,
            parameters=bound,
            updated_at=tx.now,
            **values,
        )

    rows = take(1) if limit == 1 else take(limit, untried) or take(1)
    journal.claimed(tx, work.name, scope.id, rows, by=work.order[-1].name)
    return sorted(rows, key=lambda row: tuple(getattr(row, column.name) for column in work.order))


def claim_next(tx: Tx, work: Work, scope: Any, owner: Owner, *where: ColumnElement[bool], **values: Any) -> Any | None:
    """Claim the next due unit of a locked scope; None if none is due. First gives back the units that an earlier
    delivery of the owner's message left behind there."""
    give_back_earlier(tx, work, scope, owner)
    return next(iter(claim(tx, work, scope, owner, *where, **values)), None)


@cache
def _conditions_of_claim(work: Work, is_unscoped: bool) -> tuple[tuple[ColumnElement[bool], ...], ColumnElement[bool]]:
    """(conditions of the scope's claimable units, the condition of units without attempts)."""
    in_scope = work.in_scope(None if is_unscoped else bindparam("of_scope"))
    return (in_scope, work.claimable), work.table.c.attempts == 0


def held(session: Session, work: Work, outcomes: Sequence[Outcome]) -> set[Any]:
    """The ids of the units of these outcomes whose claims still hold."""
    table = work.table
    fences = {outcome.unit.claim_id for outcome in outcomes}
    query = select(table.c.id).where(
        table.c.id.in_([outcome.unit.id for outcome in outcomes]), table.c.claim_id.in_(fences), work.working
    )
    return set(session.execute(query).scalars())


def settle(tx: Tx, work: Work, scope: Any, *outcomes: Outcome) -> Changes:
    """Write the outcomes of units of a locked scope, except those whose claims were lost; then, if any changed, update
    the scope (`work.after`). Return what changed. `engine.retry.decide` decides whether a unit with an error waits, is
    given back, or fails."""
    # The UPDATE of a single unit names its claim, and reports whether that held: no query needed before.
    owned = held(tx, work, outcomes) if len(outcomes) > 1 else {outcome.unit.id for outcome in outcomes}
    pasts = _pasts(tx, work, outcomes)
    changed: dict[str, list[Any]] = {"done": [], "failed": [], "waiting": [], "freed": [], "moved": []}
    groups: dict[tuple[StrEnum, tuple[str, ...]], list[dict[str, Any]]] = {}
    waits, error = [], ""
    for outcome in outcomes:
        unit = outcome.unit
        if unit.id not in owned:
            continue
        change, event, values = _consequence(tx, work, outcome, pasts.get(unit.id, Past()))
        changed[change].append(unit.id)
        error = values.get("error") or error
        if values.get("next_run_at") is not None:
            waits.append(max(0.0, (values["next_run_at"] - tx.now).total_seconds()))
        row = {"id": unit.id, "claim_id": unit.claim_id, "updated_at": tx.now, **values, **outcome.values}
        groups.setdefault((event, tuple(row)), []).append(row)
    for (event, _), rows in groups.items():
        if not _move(tx, work, event, rows):
            return Changes()
    ids = {change: tuple(each) for change, each in changed.items()}
    changes = Changes(**ids, retry_in_s=min(waits, default=None), error=error)
    if changes:
        work.after(tx, scope, changes)
    return changes


def _pasts(tx: Tx, work: Work, outcomes: Sequence[Outcome]) -> dict[Any, Past]:
    """The past releases of the units whose call to a provider failed."""
    ids = [outcome.unit.id for outcome in outcomes if outcome.error is not None and outcome.error.health is not None]
    if not ids:
        return {}
    c = work.table.c
    rows = tx.execute(select(c.id, c.releases, c.released_at).where(c.id.in_(ids)))
    return {
        row.id: Past(row.releases, (tx.now - row.released_at).total_seconds() if row.released_at else None)
        for row in rows
    }


def _consequence(tx: Tx, work: Work, outcome: Outcome, past: Past) -> tuple[str, StrEnum, dict[str, Any]]:
    """(the field of `Changes` for this unit, the event, columns of its row)."""
    if outcome.error is None:
        return ("moved" if outcome.event else "done"), outcome.event or work.done, {"error": None, "next_run_at": None}
    text, attempts = message_of(outcome.error), outcome.unit.attempts
    match decide(outcome.error, attempts, tx.now, work.policy(tx.settings), past):
        case RetryAt(at=at):
            return "waiting", work.wait, {"next_run_at": at, "error": text}
        case Release(at=at):
            values = {"next_run_at": at if at > tx.now else None, "error": text, "attempts": attempts - 1}
            if outcome.error.health is not None:  # after a call
                values |= {"releases": past.releases + 1, "released_at": tx.now}
            return "waiting", work.give_back, values
        case Drop():
            return "freed", work.give_back, {"next_run_at": None, "error": None, "attempts": attempts - 1}
        case GiveUp():
            tries = f" (after {attempts} attempts)" if outcome.error.kind is not ErrorKind.PERMANENT else ""
            return "failed", work.fail, {"next_run_at": None, "error": text + tries, **_ended(work, tx.now)}


def _ended(work: Work, now: datetime) -> dict[str, Any]:
    return {"finished_at": now} if "finished_at" in work.table.c else {}


def _alike(work: Work, event: StrEnum) -> dict[str, Any]:
    """Columns that an event sets to the same values for all units."""
    table = work.table
    counts = event in {work.fail, work.wait} and "retry_count" in table.c
    back = work.given_back if event in {work.give_back, work.wait} else {}
    return {**FREE, **back, **({"retry_count": table.c.retry_count + 1} if counts else {})}


def _move(session: Session, work: Work, event: StrEnum, rows: list[dict[str, Any]]) -> bool:
    """Move units, each with its own values. A single unit's may be expressions; False if its claim was lost."""
    own = rows[0].keys() - {"claim_id"}
    alike = {name: value for name, value in _alike(work, event).items() if name not in own}
    if len(rows) > 1:
        work.machine.move_each(session, work.table, event, rows, **alike)
        return True
    (row,) = rows
    if not any(isinstance(value, ColumnElement) for value in row.values()):
        return bool(work.machine.move_held(session, work.table, event, rows, **alike))
    values = {name: value for name, value in row.items() if name not in {"id", "claim_id"}}
    claimed = (work.table.c.id == row["id"], work.table.c.claim_id == row["claim_id"])
    return bool(work.machine.move(session, work.table, event, *claimed, **{**alike, **values}))


def give_back(
    tx: Tx, work: Work, scope: Any, which: ColumnElement[bool], *, counts: bool = True, reason: str = ""
) -> Changes:
    """Give back the held units of a locked scope that match `which`; fail those whose attempts are used up; then update
    the scope (`work.after`).

    `counts`: whether the attempt counts; pass False if the unit did not fail, for example when a worker ends. The
    attempt of a unit with a kept answer never counts.
    """
    table, machine, most, now = work.table, work.machine, work.policy(tx.settings).max_attempts, tx.now
    columns = (table.c.id, table.c.attempts, table.c.status, table.c.claim_id)
    rows = tx.execute(select(*columns).where(work.working, which).with_for_update()).all()
    if not rows:
        return Changes()
    answered = kept_answers.claims(tx.settings.answer_dir) if counts else set()
    counted = {row.id: row.attempts for row in rows if counts and row.claim_id not in answered}
    spent = tuple(unit for unit, attempts in counted.items() if attempts >= most)
    retried = tuple(unit for unit, attempts in counted.items() if attempts < most)
    uncounted = tuple(row.id for row in rows if row.id not in counted)
    why = reason or work.lost
    error = f"{why} (after {most} attempts)" if spent else why
    if spent:
        values = {**_alike(work, work.fail), **_ended(work, now), "error": error, "next_run_at": None}
        machine.move(tx, table, work.fail, table.c.id.in_(spent), **values, updated_at=now)
    for freed, own in ((retried, {"error": why}), (uncounted, {"attempts": table.c.attempts - 1})):
        if freed:
            values = {**_alike(work, work.give_back), **own, "next_run_at": None}
            machine.move(tx, table, work.give_back, table.c.id.in_(freed), **values, updated_at=now)
    stuck = tuple(machine.word(row.status) for row in rows)
    changes = Changes(failed=spent, freed=retried + uncounted, error=error if counted else "", stuck=stuck)
    work.after(tx, scope, changes)
    return changes


def refuse(tx: Tx, work: Work, scope: Any, error: UnitError, *where: ColumnElement[bool]) -> tuple[Any, ...]:
    """Fail the due units of a locked scope that match, because no worker can do them; return their ids. `error`: a
    permanent one, since other errors let units wait."""
    outcomes: list[Outcome] = []
    no_process = Owner(f"none:0:{uuid4().hex[:6]}", "")
    while rows := claim(tx, work, scope, no_process, *where, limit=REFUSED_AT_ONCE):
        outcomes += [Outcome(row, error) for row in rows]
    return settle(tx, work, scope, *outcomes).failed if outcomes else ()


def give_back_earlier(tx: Tx, work: Work, scope: Any, owner: Owner) -> Changes:
    """Give back the units that an earlier delivery of the owner's message left behind in a locked scope.

    That delivery's process has certainly ended. Leaves the units of live processes alone: they may be in a paid call.
    """
    left = claims.left_behind(tx, work.table, owner)
    if not left:
        return Changes()
    return give_back(tx, work, scope, and_(work.table.c.claim_id.in_(left), work.in_scope(scope.id)))


def free_lost(db: Transactions, work: Work, absent: Iterable[str]) -> dict[Any, Counter[str]]:
    """Give back units of these absent processes, and units beyond their lease; fail those without attempts left.
    Return, for each scope, the number of its units that were given back or failed, by their former state.

    A database error in one scope does not stop the others.
    """
    table, absent_processes = work.table, sorted(absent)
    conditions: list[Condition] = [lambda now: table.c.lease_until < now]
    if absent_processes:
        conditions.append(lambda _now: table.c.worker_id.in_(absent_processes))
    freed: dict[Any, Counter[str]] = {}
    for condition in conditions:  # not as one OR, for which databases read the whole table
        with db.read() as session:
            scopes = _scopes(session, work, condition(session.now))
        for scope in scopes:
            with isolated("claims.not_given_back", DBAPIError, PoolTimeout, work=work.name, scope=str(scope)):
                if stuck := _free(db, work, scope, condition, counts=True).stuck:
                    freed.setdefault(scope, Counter()).update(stuck)
    return freed


def release(db: Transactions, work: Work, processes: Iterable[str], *, patience_s: float = 5.0) -> None:
    """Give back all units of these processes, which are ending; no attempt counts."""
    owned = work.table.c.worker_id.in_(sorted(processes))
    for scope_id in db.run(lambda tx: _scopes(tx, work, owned), patience_s=patience_s):
        _free(db, work, scope_id, lambda _now: owned, counts=False, patience_s=patience_s)


def _scopes(session: Session, work: Work, condition: ColumnElement[bool]) -> list[Any]:
    """The scopes with held units that match, in order, so that transactions do not deadlock."""
    scopes = set(session.execute(select(work.scope).where(work.working, condition)).scalars())
    return sorted(scopes, key=lambda scope: (scope is not None, scope))


def _free(
    db: Transactions, work: Work, scope_id: Any, condition: Condition, *, counts: bool, patience_s: float = 60.0
) -> Changes:
    def act(tx: Tx) -> Changes:
        scope = work.lock(tx, scope_id)
        if scope is None:
            return Changes()
        return give_back(tx, work, scope, and_(work.in_scope(scope_id), condition(tx.now)), counts=counts)

    return db.run(act, patience_s=patience_s)


def renew(tx: Tx, work: Work, unit: Unit, lease_s: float | None = None) -> bool:
    """Let a claim last `lease_s` from now, by default a whole lease; False if the claim was lost."""
    c, until = work.table.c, tx.now + timedelta(seconds=lease_s or work.lease_s(tx.settings))
    statement = update(work.table).where(c.id == unit.id, c.claim_id == unit.claim_id).values(lease_until=until)
    return tx.execute(statement.returning(c.id)).first() is not None


def holders(session: Session, work: Work) -> set[str]:
    """The processes that hold units of this kind."""
    table = work.table
    query = select(table.c.worker_id).distinct().where(work.working)
    return {name for name in session.execute(query).scalars() if name}


def next_due(tx: ReadTx, work: Work, *where: ColumnElement[bool]) -> float | None:
    """Return the seconds until the next waiting unit is due; None if none waits. Ignores units that are due already."""
    table = work.table
    query = select(func.min(table.c.next_run_at)).where(work.waits(table.c.next_run_at > tx.now), *where)
    first = tx.execute(query).scalar()
    return (first - tx.now).total_seconds() if first else None
