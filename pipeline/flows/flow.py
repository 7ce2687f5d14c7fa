"""`Flow`: the functions and data of a flow. The sweeper, workers, gates and commands loop over all flows."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from itertools import islice
from typing import Any

import structlog
from sqlalchemy import ColumnElement, Select, Table
from sqlalchemy.orm import Session

from pipeline.engine import accounts
from pipeline.engine.backlog import Failure, Held, Waiting, held
from pipeline.engine.journal import MAX_IDS
from pipeline.engine.metrics import count_by
from pipeline.engine.work import Work, free_lost, holders, release
from pipeline.storage import short_ids
from pipeline.storage.context import Context
from pipeline.storage.retention import Retention

log = structlog.get_logger(__name__)


def _nothing(*_: Any) -> Collection[Any]:
    return ()


def _no_failures(_context: Context, _limit: int) -> list[Failure]:
    return []


@dataclass(frozen=True)
class Flow:
    """A flow of units of work. Its scopes, such as documents or runs, are launched as a whole by their ids."""

    name: str
    due: Callable[[Context], Iterable[str]]
    """Returns the scopes with units that are due, after doing work that only the passage of time causes."""
    next_wait_s: Callable[[Context], float | None]
    """Returns the seconds until a waiting row is due; None if no row waits."""
    works: tuple[Work, ...]
    """The kinds of units that workers claim."""
    runnable: Callable[[Context, Collection[str]], Iterable[str]]
    """Returns every scope with work now, in the order of due times, except scopes that wait only for these closed
    queues. The sweeper calls it: its queries must stay cheap however many rows wait."""
    anything: Select[bool] | None = None
    """Whether any row is claimed, has work, or will have work later; otherwise the sweeper skips the flow. The sweeper
    runs it every few seconds. None: the sweeper never skips the flow."""
    fail_unserved: Callable[[Context], Iterable[str]] = _nothing
    """Fails units that wait for a provider that is no longer configured, and returns their scopes. Beat calls it once a
    minute, so it may read all waiting rows."""
    charge: Callable[[Session, Mapping[str, Any]], None] = lambda _session, _call: None
    """Adds the cost of a recorded call to its scope, if the scope keeps a sum."""
    unfinished: Callable[[Session, Collection[str]], set[str]] | None = None
    """Returns the accounts' items that may still need calls. None: the flow makes no calls."""
    clean_up: Callable[[Context], int] = lambda _: 0
    """Removes orphaned files, and returns their number."""
    catch_up: Callable[[Context], int] = lambda _: 0
    """Does part of the postponed work, and returns its amount. Beat calls it once a minute."""
    retained: Callable[[Context], Iterable[Retention]] = _nothing
    """Returns the retention of rows and files that accumulate. Clean-up and `penstock prune` delete them."""
    followed: Mapping[str, tuple[Table, type[IntEnum | StrEnum]]] = field(default_factory=dict)
    """Tables of rows that people follow, with their states, by name."""
    counted: Mapping[str, Callable[[Session], Mapping[Any, int]]] = field(default_factory=dict)
    """Functions that count rows of these tables by state, where reading all rows would take too long."""
    ids: Mapping[str, ColumnElement[Any]] = field(default_factory=dict)
    """Indexed columns of ids that people may shorten, by name."""
    waiting: Callable[[Context], Iterable[Waiting]] = _nothing
    """Returns waiting work for people, by the current queue of its messages."""
    failures: Callable[[Context, int], list[Failure]] = _no_failures
    """Returns the newest permanent failures for people, at most this many."""
    has_subscribers: Callable[[Context], bool] | None = None
    """Whether anyone subscribes to events, for a flow that sends them on. Tasks wake it soon after a new event."""

    def is_at_rest(self, context: Context) -> bool:
        """Whether the flow has no work, now or later, unless rows change: no row is claimed, due, or waits for its
        time. False if the flow cannot tell."""
        if self.anything is None:
            return False
        with context.db.read() as session:
            return not session.execute(self.anything).scalar_one()

    def resolve(self, context: Context, noun: str, beginning: str) -> str | None:
        """Return the id that equals or begins with `beginning`; None without a match. Raises `UserError` for several
        matches.

        `noun`: a key of `ids`, such as `items`.
        """
        return short_ids.resolve(context, self.ids[noun], beginning, noun)

    def free_lost(self, context: Context, absent: Collection[str]) -> int:
        """Give back units that these absent processes hold or whose lease is over; return how many scopes, such as
        documents, had some."""
        freed = 0
        for work in self.works:
            by_scope = free_lost(context.db, work, absent)
            if by_scope:
                stuck = sum(by_scope.values(), Counter[str]())
                scopes = [str(scope) for scope in islice(by_scope, MAX_IDS)]
                log.warning("claims.given_back", flow=self.name, work=work.name, stuck=dict(stuck), scopes=scopes)
            freed += len(by_scope)
        return freed

    def release_money(self, context: Context, owner: str = "") -> None:
        """End the flow's reservations for items that `unfinished` leaves out: of all accounts, or of `owner`."""
        if (unfinished := self.unfinished) is None:
            return
        with context.db.read() as session:
            over = accounts.ended(session, self.name, unfinished, owner)
        if over:
            context.db.run(lambda tx: accounts.release(tx, over))

    def release_all(self, context: Context, processes: Collection[str]) -> None:
        """Give back all units that these ending processes hold, so that others take them at once; the attempts do not
        count."""
        for work in self.works:
            release(context.db, work, processes)

    def holders(self, context: Context) -> set[str]:
        """Return the names of all processes that hold a claim, even of dead ones."""
        with context.db.read() as session:
            return set[str]().union(*(holders(session, work) for work in self.works))

    def held(self, context: Context) -> list[Held]:
        """Count the units that processes hold now: one entry per kind of unit, process and scope, with the numbers of
        its units and of its messages."""
        with context.db.read() as session:
            return [count for work in self.works for count in held(session, work)]

    def figures(self, context: Context, *, also_none: bool = False) -> dict[str, dict[str, int]]:
        """Count rows by the name of their state, for each table that people follow.

        `also_none`: also states without rows.
        """
        with context.db.read() as session:
            counted = {
                name: self.counted[name](session) if name in self.counted else count_by(session, table.c.status)
                for name, (table, _) in self.followed.items()
            }
        return {
            name: {_word(state): counted[name].get(state, 0) for state in states if also_none or state in counted[name]}
            for name, (_, states) in self.followed.items()
        }


def _word(state: IntEnum | StrEnum) -> str:
    return state.value if isinstance(state, StrEnum) else state.name
