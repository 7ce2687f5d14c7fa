"""A kind of unit of work, as data, and the few functions by which units of every kind are claimed, settled and freed.

A unit is a row with `engine.claims.ClaimColumns`. Units belong to a scope (a document, a batch, a run), whose row is
locked before its units: so claims, results, counters and a user's commands on one scope come one after another, and
exactly one transaction sees its last unit settled.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from sqlalchemy import BindParameter, ColumnElement, Table, and_, bindparam, func, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from pipeline.engine import claims, journal, kept_answers
from pipeline.engine.claims import FREE, Claim, Owner, held_by
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.isolation import isolated
from pipeline.engine.retry import Drop, GiveUp, Past, Policy, Release, RetryAt, decide
from pipeline.engine.states import Machine
from pipeline.engine.traces import message_of

Result = TypeVar("Result")
REFUSED_AT_ONCE = 500
Condition = Callable[[datetime], ColumnElement[bool]]
"""What to look for, at this time."""


class Transactions(Protocol):
    """What makes transactions: `storage.database.Database`."""

    def run(self, work: Callable[[Session], Result], *, patience_s: float = ...) -> Result:
        """Run `work` in a transaction, again if the database was away."""

    def read(self) -> AbstractContextManager[Session]:
        """A transaction that only reads."""

    def now(self) -> datetime:
        """The database's time."""


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


def _no_consequence(_session: Session, _scope: Any, _changes: Changes, _now: datetime) -> None:
    """Nothing follows from units that were settled."""


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
    """Locks the row of a scope until the transaction ends, and returns it; None if it is gone."""
    order: tuple[ColumnElement[Any], ...]
    """In which order units of a scope are claimed."""
    policy: Callable[[Any], Policy]
    """When a unit is tried again, by the settings."""
    lease_s: Callable[[Any], float]
    """How long a claim holds, by the settings: longer than any call takes."""
    lost: str
    """What a unit's row says after its worker was lost."""
    after: Callable[[Session, Any, Changes, datetime], None] = _no_consequence
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


@dataclass(frozen=True)
class Outcome:
    """How one unit ended, under the claim that it was claimed with. `event`: where it is not simply done."""

    id: Any
    attempt: int
    claim: Claim
    error: UnitError | None = None
    event: StrEnum | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    """Further columns of the row."""


def new_claim(work: Work, owner: Owner, settings: Any, now: datetime) -> Claim:
    """A claim for units of this kind."""
    return claims.new_claim(owner, now, work.lease_s(settings))


def claim(
    session: Session,
    work: Work,
    scope_id: Any,
    claim_as: Claim,
    now: datetime,
    *where: ColumnElement[bool],
    limit: int = 1,
    parameters: Mapping[str, Any] = MappingProxyType({}),
    **values: Any,
) -> list[Any]:
    """Claim up to `limit` due units of a scope that the caller has locked; their rows, in the order of claiming.

    Of several, those that were tried before are claimed one at a time: a unit that kills its worker must not spend the
    attempts of others that were claimed beside it. `parameters`: see `engine.claims.take`.
    """
    mine, untried = _conditions_of_claim(work, scope_id is None)
    given = parameters if scope_id is None else {**parameters, "of_scope": scope_id}

    def take(most: int, *further: ColumnElement[bool]) -> list[Any]:
        return claims.take(
            session,
            work.table,
            work.machine,
            work.claim,
            *mine,
            *where,
            *further,
            claim=claim_as,
            order_by=work.order,
            limit=most,
            now=now,
            parameters=given,
            updated_at=now,
            **values,
        )

    rows = take(1) if limit == 1 else take(limit, untried) or take(1)
    journal.claimed(session, work.name, scope_id, rows, by=work.order[-1].name)
    return sorted(rows, key=lambda row: tuple(getattr(row, column.name) for column in work.order))


@cache
def _conditions_of_claim(work: Work, is_unscoped: bool) -> tuple[tuple[ColumnElement[bool], ...], ColumnElement[bool]]:
    """(what may be claimed of the scope, what was never tried)."""
    mine = work.in_scope(None if is_unscoped else bindparam("of_scope"))
    return (mine, work.claimable), work.table.c.attempts == 0


def held(session: Session, work: Work, outcomes: Sequence[Outcome]) -> set[Any]:
    """The ids of the units that are still held under the claims they were claimed with."""
    table = work.table
    fences = {one.claim.id for one in outcomes}
    mine = select(table.c.id).where(
        table.c.id.in_([one.id for one in outcomes]), table.c.claim_id.in_(fences), work.working
    )
    return set(session.execute(mine).scalars())


def settle(
    session: Session, work: Work, scope: Any, outcomes: Sequence[Outcome], settings: Any, now: datetime
) -> Changes:
    """Write how units of a locked scope ended, if their claims still hold; then what follows for the scope."""
    # The UPDATE of one alone names its claim, and says whether it still held: nobody need ask before.
    mine = held(session, work, outcomes) if len(outcomes) > 1 else {one.id for one in outcomes}
    policy = work.policy(settings)
    pasts = _pasts(session, work, outcomes, now)
    found: dict[str, list[Any]] = {"done": [], "failed": [], "waiting": [], "freed": [], "moved": []}
    groups: dict[tuple[StrEnum, tuple[str, ...]], list[dict[str, Any]]] = {}
    waits, error = [], ""
    for one in outcomes:
        if one.id not in mine:
            continue
        what, event, values = _consequence(work, one, policy, now, pasts.get(one.id, Past()))
        found[what].append(one.id)
        error = values.get("error") or error
        if values.get("next_run_at") is not None:
            waits.append(max(0.0, (values["next_run_at"] - now).total_seconds()))
        row = {"id": one.id, "claim_id": one.claim.id, "updated_at": now, **values, **one.values}
        groups.setdefault((event, tuple(row)), []).append(row)
    for (event, _), rows in groups.items():
        if not _move(session, work, event, rows):
            return Changes()
    ids = {what: tuple(each) for what, each in found.items()}
    changes = Changes(**ids, retry_in_s=min(waits, default=None), error=error)
    if changes:
        work.after(session, scope, changes, now)
    return changes


def _pasts(session: Session, work: Work, outcomes: Sequence[Outcome], now: datetime) -> dict[Any, Past]:
    """The releases of the units whose call to a provider failed."""
    ids = [one.id for one in outcomes if one.error is not None and one.error.health is not None]
    if not ids:
        return {}
    c = work.table.c
    rows = session.execute(select(c.id, c.releases, c.released_at).where(c.id.in_(ids)))
    return {
        row.id: Past(row.releases, (now - row.released_at).total_seconds() if row.released_at else None) for row in rows
    }


def _consequence(
    work: Work, one: Outcome, policy: Policy, now: datetime, past: Past
) -> tuple[str, StrEnum, dict[str, Any]]:
    """What became of a unit (a field of `Changes`), the event, and columns of its row."""
    if one.error is None:
        return ("moved" if one.event else "done"), one.event or work.done, {"error": None, "next_run_at": None}
    text = message_of(one.error)
    match decide(one.error, one.attempt, now, policy, past):
        case RetryAt(at=at):
            return "waiting", work.wait, {"next_run_at": at, "error": text}
        case Release(at=at):
            values = {"next_run_at": at if at > now else None, "error": text, "attempts": one.attempt - 1}
            if one.error.health is not None:  # a call was made
                values |= {"releases": past.releases + 1, "released_at": now}
            return "waiting", work.give_back, values
        case Drop():
            return "freed", work.give_back, {"next_run_at": None, "error": None, "attempts": one.attempt - 1}
        case GiveUp():
            tries = f" (after {one.attempt} attempts)" if one.error.kind is not ErrorKind.PERMANENT else ""
            return "failed", work.fail, {"next_run_at": None, "error": text + tries, **_ended(work, now)}


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
    session: Session,
    work: Work,
    scope: Any,
    which: ColumnElement[bool],
    settings: Any,
    now: datetime,
    *,
    counts: bool = True,
    reason: str = "",
) -> Changes:
    """Give back the held units that match `which`; of those whose attempts are used up, give up. The scope is locked.

    `counts`: whether the attempt counts. It does not if the unit did not fail, for example when a worker ends. The
    attempt of a unit whose paid answer is kept never counts.
    """
    table, machine, policy = work.table, work.machine, work.policy(settings)
    columns = (table.c.id, table.c.attempts, table.c.status, table.c.claim_id)
    rows = session.execute(select(*columns).where(work.working, which).with_for_update()).all()
    if not rows:
        return Changes()
    answered = kept_answers.claims(settings.answer_dir) if counts else set()
    counted = {row.id: row.attempts for row in rows if counts and row.claim_id not in answered}
    spent = tuple(unit for unit, attempts in counted.items() if attempts >= policy.max_attempts)
    again = tuple(unit for unit, attempts in counted.items() if attempts < policy.max_attempts)
    uncounted = tuple(row.id for row in rows if row.id not in counted)
    why = reason or work.lost
    error = f"{why} (after {policy.max_attempts} attempts)" if spent else why
    if spent:
        values = {**_alike(work, work.fail), **_ended(work, now), "error": error, "next_run_at": None}
        machine.move(session, table, work.fail, table.c.id.in_(spent), **values, updated_at=now)
    for freed, told in ((again, {"error": why}), (uncounted, {"attempts": table.c.attempts - 1})):
        if freed:
            values = {**_alike(work, work.give_back), **told, "next_run_at": None}
            machine.move(session, table, work.give_back, table.c.id.in_(freed), **values, updated_at=now)
    stuck = tuple(machine.word(row.status) for row in rows)
    changes = Changes(failed=spent, freed=again + uncounted, error=error if counted else "", stuck=stuck)
    work.after(session, scope, changes, now)
    return changes


def refuse(
    session: Session,
    work: Work,
    scope: Any,
    scope_id: Any,
    owner: Owner,
    error: UnitError,
    settings: Any,
    now: datetime,
    *where: ColumnElement[bool],
) -> tuple[Any, ...]:
    """Give up the due units of a locked scope that match, since nobody can do them; their ids."""
    mine = new_claim(work, owner, settings, now)
    outcomes: list[Outcome] = []
    while rows := claim(session, work, scope_id, mine, now, *where, limit=REFUSED_AT_ONCE):
        outcomes += [Outcome(row.id, row.attempts, mine, error) for row in rows]
    return settle(session, work, scope, outcomes, settings, now).failed if outcomes else ()


def give_back_earlier(
    session: Session, work: Work, scope: Any, scope_id: Any, owner: Owner, settings: Any, now: datetime
) -> Changes:
    """Give back what an earlier delivery of the owner's message left behind: its process has certainly ended.

    What a living process holds is left alone: it may be in its call, which must not be paid for again.
    """
    left = claims.left_behind(session, work.table, owner)
    if not left:
        return Changes()
    earlier = and_(work.table.c.claim_id.in_(left), work.in_scope(scope_id))
    return give_back(session, work, scope, earlier, settings, now)


def free_lost(db: Transactions, work: Work, absent: Iterable[str], settings: Any) -> dict[Any, Counter[str]]:
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
            scopes = _scopes(session, work, condition(db.now()))
        for scope in scopes:
            with isolated("claims.not_given_back", DBAPIError, PoolTimeout, work=work.name, scope=str(scope)):
                if stuck := _free(db, work, scope, condition, settings, counts=True).stuck:
                    freed.setdefault(scope, Counter()).update(stuck)
    return freed


def release(db: Transactions, work: Work, processes: Iterable[str], settings: Any, *, patience_s: float = 5.0) -> None:
    """Give back everything that these processes, which are ending, still hold; no attempt counts."""
    mine = work.table.c.worker_id.in_(sorted(processes))
    for scope_id in db.run(lambda session: _scopes(session, work, mine), patience_s=patience_s):
        _free(db, work, scope_id, lambda _now: mine, settings, counts=False, patience_s=patience_s)


def _scopes(session: Session, work: Work, condition: ColumnElement[bool]) -> list[Any]:
    """The scopes with held units that match, in order: no two transactions wait for each other's."""
    found = set(session.execute(select(work.scope).where(work.working, condition)).scalars())
    return sorted(found, key=lambda scope: (scope is not None, scope))


def _free(
    db: Transactions,
    work: Work,
    scope_id: Any,
    condition: Condition,
    settings: Any,
    *,
    counts: bool,
    patience_s: float = 60.0,
) -> Changes:
    def act(session: Session) -> Changes:
        scope = work.lock(session, scope_id)
        if scope is None:
            return Changes()
        now = db.now()
        which = and_(work.in_scope(scope_id), condition(now))
        return give_back(session, work, scope, which, settings, now, counts=counts)

    return db.run(act, patience_s=patience_s)


def renew(session: Session, work: Work, unit_id: Any, claim_as: Claim, until: datetime) -> bool:
    """Extend a claim's lease; False if the claim was taken away."""
    table = work.table
    mine = update(table).where(table.c.id == unit_id, held_by(table, claim_as)).values(lease_until=until)
    return session.execute(mine.returning(table.c.id)).first() is not None


def holders(session: Session, work: Work) -> set[str]:
    """Every process that holds a unit of this kind."""
    table = work.table
    query = select(table.c.worker_id).distinct().where(work.working)
    return {name for name in session.execute(query).scalars() if name}


def next_due(session: Session, work: Work, now: datetime, *where: ColumnElement[bool]) -> float | None:
    """Seconds until the next unit that waits is due; None if none waits."""
    table = work.table
    query = select(func.min(table.c.next_run_at)).where(work.waits(table.c.next_run_at > now), *where)
    first = session.execute(query).scalar()
    return (first - now).total_seconds() if first else None
