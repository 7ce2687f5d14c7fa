"""A kind of unit of work, as data, and the few functions by which units of every kind are claimed, settled and freed.

A unit is a row with `engine.claims.ClaimColumns`. Units belong to a scope (a document, a batch, a run), whose row is
locked before its units: so claims, results, counters and a user's commands on one scope come one after another, and
exactly one transaction sees its last unit settled. A claimed unit is its row as the claim left it.
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
"""What to look for, at this time."""


class Transactions(Protocol):
    """What makes transactions: `storage.database.Database`."""

    def run(self, work: Callable[[Tx], Result], *, patience_s: float = ...) -> Result:
        """Run `work` in a transaction, again if the database was away."""

    def read(self) -> AbstractContextManager[ReadTx]:
        """A transaction that only reads."""


@dataclass(frozen=True)
class Changes:
    """What one transaction did to units of one scope, by their ids."""

    done: tuple[Any, ...] = ()
    failed: tuple[Any, ...] = ()
    waiting: tuple[Any, ...] = ()
    """Failed or refused, and due again at a time of their own."""
    freed: tuple[Any, ...] = ()
    """Given back: their worker was lost, or ended, or nobody wants the result."""
    moved: tuple[Any, ...] = ()
    """Moved by an event of their own, such as a step that is done."""
    retry_in_s: float | None = None
    """Seconds until the first of those that wait is due."""
    error: str = ""
    """Of the last one that failed or was freed."""
    stuck: tuple[str, ...] = ()
    """Of units that were given back: the state each was in."""

    @property
    def ids(self) -> tuple[Any, ...]:
        """Of all these units."""
        return (*self.done, *self.failed, *self.waiting, *self.freed, *self.moved)

    def __bool__(self) -> bool:
        return bool(self.ids)


def _no_consequence(_tx: Tx, _scope: Any, _changes: Changes) -> None:
    """Nothing follows from units that were settled."""


class Scope(NamedTuple):
    """A scope that has no row."""

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
    """Locks the row of a scope, by its `id`, until the transaction ends, and returns it; None if it is gone."""
    order: tuple[ColumnElement[Any], ...]
    """In which order units of a scope are claimed."""
    policy: Callable[[Any], Policy]
    """When a unit is tried again, by the settings."""
    lease_s: Callable[[Any], float]
    """How long a claim holds, by the settings: longer than any call takes."""
    lost: str
    """What a unit's row says after its worker was lost."""
    after: Callable[[Tx, Any, Changes], None] = _no_consequence
    """What follows for the scope, in the same transaction: counters, and its own next state after its last unit."""
    given_back: Mapping[str, Any] = field(default_factory=dict)
    """Further columns of a unit that goes back."""
    where: tuple[ColumnElement[bool], ...] = ()
    """What tells its units from others in the table."""

    @cached_property
    def working(self) -> ColumnElement[bool]:
        """A unit of this kind is held."""
        states = claims.in_states(self.table, self.machine.sources(self.done))
        return and_(self.table.c.claim_id.is_not(None), states, *self.where)

    @cached_property
    def claimable(self) -> ColumnElement[bool]:
        """A unit may be claimed, be it due or not. The state alone need not tell: a run that syncs stays as it is."""
        states = claims.in_states(self.table, self.machine.sources(self.claim))
        return and_(states, self.table.c.claim_id.is_(None), *self.where)

    def waits(self, when: ColumnElement[bool]) -> ColumnElement[bool]:
        """A unit may be claimed at a time of its own, `when`. Few have one: databases must begin with these, and not
        with all that have the state, so no index knows the state here."""
        state = func.coalesce(self.table.c.status, self.table.c.status)
        open_ = [source.value for source in self.machine.sources(self.claim)]
        return and_(when, state.in_(open_), self.table.c.claim_id.is_(None), *self.where)

    def due(self, now: datetime | BindParameter[Any]) -> ColumnElement[bool]:
        """A unit may be claimed now."""
        return and_(self.claimable, claims.is_due(self.table, now))

    def in_scope(self, scope_id: Any) -> ColumnElement[bool]:
        """Units of one scope."""
        return self.scope.is_(None) if scope_id is None else self.scope == scope_id


class Unit(Protocol):
    """A claimed unit: its row, or what a flow made of it."""

    @property
    def id(self) -> Any:
        """Its row's id."""

    @property
    def attempts(self) -> int:
        """Its attempts, with this one."""

    @property
    def claim_id(self) -> str:
        """The claim that its outcome must name."""


@dataclass(frozen=True)
class Outcome:
    """How a claimed unit ended. `event`: where it is not simply done."""

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
    """Claim up to `limit` due units of a locked scope; their rows, in the order of claiming.

    Of several, those that were tried before are claimed one at a time: a unit that kills its worker must not spend the
    attempts of others that were claimed beside it. `parameters`: see `engine.claims.take`.
    """
    mine, untried = _conditions_of_claim(work, scope.id is None)
    given = parameters if scope.id is None else {**parameters, "of_scope": scope.id}
    claim_as = claims.new_claim(owner, tx.now, work.lease_s(tx.settings))

    def take(most: int, *further: ColumnElement[bool]) -> list[Any]:
        return claims.take(
            tx,
            work.table,
            work.machine,
            work.claim,
            *mine,
            *where,
            *further,
            claim=claim_as,
            order_by=work.order,
            limit=most,
            now=tx.now,
            parameters=given,
            updated_at=tx.now,
            **values,
        )

    rows = take(1) if limit == 1 else take(limit, untried) or take(1)
    journal.claimed(tx, work.name, scope.id, rows, by=work.order[-1].name)
    return sorted(rows, key=lambda row: tuple(getattr(row, column.name) for column in work.order))


def claim_next(tx: Tx, work: Work, scope: Any, owner: Owner, *where: ColumnElement[bool], **values: Any) -> Any | None:
    """Claim the next due unit of a locked scope, after giving back what an earlier delivery of the owner's message left
    behind there; None if none is due."""
    give_back_earlier(tx, work, scope, owner)
    return next(iter(claim(tx, work, scope, owner, *where, **values)), None)


@cache
def _conditions_of_claim(work: Work, is_unscoped: bool) -> tuple[tuple[ColumnElement[bool], ...], ColumnElement[bool]]:
    """(what may be claimed of the scope, what was never tried)."""
    mine = work.in_scope(None if is_unscoped else bindparam("of_scope"))
    return (mine, work.claimable), work.table.c.attempts == 0


def held(session: Session, work: Work, outcomes: Sequence[Outcome]) -> set[Any]:
    """The ids of the units that are still held under the claims they were claimed with."""
    table = work.table
    fences = {one.unit.claim_id for one in outcomes}
    mine = select(table.c.id).where(
        table.c.id.in_([one.unit.id for one in outcomes]), table.c.claim_id.in_(fences), work.working
    )
    return set(session.execute(mine).scalars())


def settle(tx: Tx, work: Work, scope: Any, *outcomes: Outcome) -> Changes:
    """Write how units of a locked scope ended, if their claims still hold; then what follows for the scope."""
    # The UPDATE of one alone names its claim, and says whether it still held: nobody need ask before.
    mine = held(tx, work, outcomes) if len(outcomes) > 1 else {one.unit.id for one in outcomes}
    pasts = _pasts(tx, work, outcomes)
    found: dict[str, list[Any]] = {"done": [], "failed": [], "waiting": [], "freed": [], "moved": []}
    groups: dict[tuple[StrEnum, tuple[str, ...]], list[dict[str, Any]]] = {}
    waits, error = [], ""
    for one in outcomes:
        unit = one.unit
        if unit.id not in mine:
            continue
        what, event, values = _consequence(tx, work, one, pasts.get(unit.id, Past()))
        found[what].append(unit.id)
        error = values.get("error") or error
        if values.get("next_run_at") is not None:
            waits.append(max(0.0, (values["next_run_at"] - tx.now).total_seconds()))
        row = {"id": unit.id, "claim_id": unit.claim_id, "updated_at": tx.now, **values, **one.values}
        groups.setdefault((event, tuple(row)), []).append(row)
    for (event, _), rows in groups.items():
        if not _move(tx, work, event, rows):
            return Changes()
    ids = {what: tuple(each) for what, each in found.items()}
    changes = Changes(**ids, retry_in_s=min(waits, default=None), error=error)
    if changes:
        work.after(tx, scope, changes)
    return changes


def _pasts(tx: Tx, work: Work, outcomes: Sequence[Outcome]) -> dict[Any, Past]:
    """The releases of the units whose call to a provider failed."""
    ids = [one.unit.id for one in outcomes if one.error is not None and one.error.health is not None]
    if not ids:
        return {}
    c = work.table.c
    rows = tx.execute(select(c.id, c.releases, c.released_at).where(c.id.in_(ids)))
    return {
        row.id: Past(row.releases, (tx.now - row.released_at).total_seconds() if row.released_at else None)
        for row in rows
    }


def _consequence(tx: Tx, work: Work, one: Outcome, past: Past) -> tuple[str, StrEnum, dict[str, Any]]:
    """What became of a unit (a field of `Changes`), the event, and columns of its row."""
    if one.error is None:
        return ("moved" if one.event else "done"), one.event or work.done, {"error": None, "next_run_at": None}
    text, attempts = message_of(one.error), one.unit.attempts
    match decide(one.error, attempts, tx.now, work.policy(tx.settings), past):
        case RetryAt(at=at):
            return "waiting", work.wait, {"next_run_at": at, "error": text}
        case Release(at=at):
            values = {"next_run_at": at if at > tx.now else None, "error": text, "attempts": attempts - 1}
            if one.error.health is not None:  # a call was made
                values |= {"releases": past.releases + 1, "released_at": tx.now}
            return "waiting", work.give_back, values
        case Drop():
            return "freed", work.give_back, {"next_run_at": None, "error": None, "attempts": attempts - 1}
        case GiveUp():
            tries = f" (after {attempts} attempts)" if one.error.kind is not ErrorKind.PERMANENT else ""
            return "failed", work.fail, {"next_run_at": None, "error": text + tries, **_ended(work, tx.now)}


def _ended(work: Work, now: datetime) -> dict[str, Any]:
    return {"finished_at": now} if "finished_at" in work.table.c else {}


def _alike(work: Work, event: StrEnum) -> dict[str, Any]:
    """Columns that an event sets alike for all units."""
    table = work.table
    counts = event in {work.fail, work.wait} and "retry_count" in table.c
    back = work.given_back if event in {work.give_back, work.wait} else {}
    return {**FREE, **back, **({"retry_count": table.c.retry_count + 1} if counts else {})}


def _move(session: Session, work: Work, event: StrEnum, rows: list[dict[str, Any]]) -> bool:
    """Move units, each with its own values. One alone may have expressions among them; False if its claim was lost."""
    own = rows[0].keys() - {"claim_id"}
    alike = {name: value for name, value in _alike(work, event).items() if name not in own}
    if len(rows) > 1:
        work.machine.move_each(session, work.table, event, rows, **alike)
        return True
    (row,) = rows
    if not any(isinstance(value, ColumnElement) for value in row.values()):
        return bool(work.machine.move_held(session, work.table, event, rows, **alike))
    values = {name: value for name, value in row.items() if name not in {"id", "claim_id"}}
    mine = (work.table.c.id == row["id"], work.table.c.claim_id == row["claim_id"])
    return bool(work.machine.move(session, work.table, event, *mine, **{**alike, **values}))


def give_back(
    tx: Tx, work: Work, scope: Any, which: ColumnElement[bool], *, counts: bool = True, reason: str = ""
) -> Changes:
    """Give back the held units that match `which`; of those whose attempts are used up, give up. The scope is locked.

    `counts`: whether the attempt counts. It does not if the unit did not fail, for example when a worker ends. The
    attempt of a unit whose paid answer is kept never counts.
    """
    table, machine, most, now = work.table, work.machine, work.policy(tx.settings).max_attempts, tx.now
    columns = (table.c.id, table.c.attempts, table.c.status, table.c.claim_id)
    rows = tx.execute(select(*columns).where(work.working, which).with_for_update()).all()
    if not rows:
        return Changes()
    answered = kept_answers.claims(tx.settings.answer_dir) if counts else set()
    counted = {row.id: row.attempts for row in rows if counts and row.claim_id not in answered}
    spent = tuple(unit for unit, attempts in counted.items() if attempts >= most)
    again = tuple(unit for unit, attempts in counted.items() if attempts < most)
    uncounted = tuple(row.id for row in rows if row.id not in counted)
    why = reason or work.lost
    error = f"{why} (after {most} attempts)" if spent else why
    if spent:
        values = {**_alike(work, work.fail), **_ended(work, now), "error": error, "next_run_at": None}
        machine.move(tx, table, work.fail, table.c.id.in_(spent), **values, updated_at=now)
    for freed, told in ((again, {"error": why}), (uncounted, {"attempts": table.c.attempts - 1})):
        if freed:
            values = {**_alike(work, work.give_back), **told, "next_run_at": None}
            machine.move(tx, table, work.give_back, table.c.id.in_(freed), **values, updated_at=now)
    stuck = tuple(machine.word(row.status) for row in rows)
    changes = Changes(failed=spent, freed=again + uncounted, error=error if counted else "", stuck=stuck)
    work.after(tx, scope, changes)
    return changes


def refuse(tx: Tx, work: Work, scope: Any, error: UnitError, *where: ColumnElement[bool]) -> tuple[Any, ...]:
    """Give up the due units of a locked scope that match, since nobody can do them; their ids."""
    outcomes: list[Outcome] = []
    nobody = Owner(f"none:0:{uuid4().hex[:6]}", "")
    while rows := claim(tx, work, scope, nobody, *where, limit=REFUSED_AT_ONCE):
        outcomes += [Outcome(row, error) for row in rows]
    return settle(tx, work, scope, *outcomes).failed if outcomes else ()


def give_back_earlier(tx: Tx, work: Work, scope: Any, owner: Owner) -> Changes:
    """Give back what an earlier delivery of the owner's message left behind in a locked scope: its process has
    certainly ended.

    What a living process holds is left alone: it may be in its call, which must not be paid for again.
    """
    left = claims.left_behind(tx, work.table, owner)
    if not left:
        return Changes()
    return give_back(tx, work, scope, and_(work.table.c.claim_id.in_(left), work.in_scope(scope.id)))


def free_lost(db: Transactions, work: Work, absent: Iterable[str]) -> dict[Any, Counter[str]]:
    """Give back what these absent processes hold, and what is beyond its lease; how many units of which scope were
    stuck in which state.

    A scope whose rows cannot be given back, whatever it raises, never keeps others from it.
    """
    table, gone = work.table, sorted(absent)
    conditions: list[Condition] = [lambda now: table.c.lease_until < now]
    if gone:
        conditions.append(lambda _now: table.c.worker_id.in_(gone))
    freed: dict[Any, Counter[str]] = {}
    for condition in conditions:  # one after the other: for an OR, databases read the whole table
        with db.read() as session:
            scopes = _scopes(session, work, condition(session.now))
        for scope in scopes:
            with isolated("claims.not_given_back", DBAPIError, PoolTimeout, work=work.name, scope=str(scope)):
                if stuck := _free(db, work, scope, condition, counts=True).stuck:
                    freed.setdefault(scope, Counter()).update(stuck)
    return freed


def release(db: Transactions, work: Work, processes: Iterable[str], *, patience_s: float = 5.0) -> None:
    """Give back everything that these processes, which are ending, still hold; no attempt counts."""
    mine = work.table.c.worker_id.in_(sorted(processes))
    for scope_id in db.run(lambda tx: _scopes(tx, work, mine), patience_s=patience_s):
        _free(db, work, scope_id, lambda _now: mine, counts=False, patience_s=patience_s)


def _scopes(session: Session, work: Work, condition: ColumnElement[bool]) -> list[Any]:
    """The scopes with held units that match, in order: no two transactions wait for each other's."""
    found = set(session.execute(select(work.scope).where(work.working, condition)).scalars())
    return sorted(found, key=lambda scope: (scope is not None, scope))


def _free(
    db: Transactions, work: Work, scope_id: Any, condition: Condition, *, counts: bool, patience_s: float = 60.0
) -> Changes:
    def act(tx: Tx) -> Changes:
        scope = work.lock(tx, scope_id)
        if scope is None:
            return Changes()
        return give_back(tx, work, scope, and_(work.in_scope(scope_id), condition(tx.now)), counts=counts)

    return db.run(act, patience_s=patience_s)


def renew(tx: Tx, work: Work, unit: Unit) -> bool:
    """Extend a claim by its lease; False if the claim was taken away."""
    c, until = work.table.c, tx.now + timedelta(seconds=work.lease_s(tx.settings))
    mine = update(work.table).where(c.id == unit.id, c.claim_id == unit.claim_id).values(lease_until=until)
    return tx.execute(mine.returning(c.id)).first() is not None


def holders(session: Session, work: Work) -> set[str]:
    """Every process that holds a unit of this kind."""
    table = work.table
    query = select(table.c.worker_id).distinct().where(work.working)
    return {name for name in session.execute(query).scalars() if name}


def next_due(tx: ReadTx, work: Work, *where: ColumnElement[bool]) -> float | None:
    """Seconds until the next unit that waits is due; None if none waits."""
    table = work.table
    query = select(func.min(table.c.next_run_at)).where(work.waits(table.c.next_run_at > tx.now), *where)
    first = tx.execute(query).scalar()
    return (first - tx.now).total_seconds() if first else None
