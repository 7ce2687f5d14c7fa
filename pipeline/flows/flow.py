"""What every flow tells the house about itself, as data. The sweeper, workers, gates and commands loop over `FLOWS`."""

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
    """A flow of units of work. A scope is what is launched as a whole, by its id: a document, a run."""

    name: str
    due: Callable[[Context], Iterable[str]]
    """The scopes of which something has waited long enough. Sees to what only time brings about first."""
    next_wait_s: Callable[[Context], float | None]
    """Seconds until something that waits is due; None if nothing waits."""
    works: tuple[Work, ...]
    """The kinds of units that workers claim."""
    runnable: Callable[[Context, Collection[str]], Iterable[str]]
    """Every scope that has something to do now, in the order of when it was due, but for what waits for these closed
    queues only. For the sweeper: whatever the database is asked must be cheap however much waits."""
    anything: Select[bool] | None = None
    """Whether any row is held, asks for something, or will with time: else the sweeper passes the flow by. It asks
    every few seconds. None: it looks at the flow each time."""
    fail_unserved: Callable[[Context], Iterable[str]] = _nothing
    """Fail what waits for a provider that is not configured any more; the scopes concerned. Beat asks once a
    minute: it may read whatever waits."""
    charge: Callable[[Session, str, float], None] = lambda _session, _scope, _cost: None
    """Add what a call cost to its scope, where that keeps a sum."""
    unfinished: Callable[[Session, Collection[str]], set[str]] | None = None
    """Those of these items, as accounts name them, that calls may still be made for. None: the flow calls nobody."""
    clean_up: Callable[[Context], int] = lambda _: 0
    """Remove what nobody owns or wants any more; how many files."""
    catch_up: Callable[[Context], int] = lambda _: 0
    """Do some of what was put off; how much. Beat asks once a minute."""
    retained: Callable[[Context], Iterable[Retention]] = _nothing
    """What piles up, and how long it is kept. It goes when clean-up runs, and with `penstock prune`."""
    followed: Mapping[str, tuple[Table, type[IntEnum | StrEnum]]] = field(default_factory=dict)
    """The rows that people follow, by what they are called: their table and its states."""
    counted: Mapping[str, Callable[[Session], Mapping[Any, int]]] = field(default_factory=dict)
    """How some of these are counted by state, where reading all rows would take too long."""
    ids: Mapping[str, ColumnElement[Any]] = field(default_factory=dict)
    """Ids that people give, and may shorten, by what they are called: their indexed columns."""
    waiting: Callable[[Context], Iterable[Waiting]] = _nothing
    """What waits, by the queue that its messages go to now: for people."""
    failures: Callable[[Context, int], list[Failure]] = _no_failures
    """The newest of what failed and stays so, at most so many: for people."""
    hears: Callable[[Context], bool] | None = None
    """Of a flow that follows events: whether anybody waits for them. It is woken soon after something was announced."""

    def is_at_rest(self, context: Context) -> bool:
        """No row is held, asks for anything, or will before somebody changes one."""
        if self.anything is None:
            return False
        with context.db.read() as session:
            return not session.execute(self.anything).scalar_one()

    def resolve(self, context: Context, noun: str, beginning: str) -> str | None:
        """The id of this kind that begins so; None if there is none. Raises `UserError` if several do."""
        return short_ids.resolve(context, self.ids[noun], beginning, noun)

    def free_lost(self, context: Context, absent: Collection[str]) -> int:
        """Give back what these absent processes hold, and what is beyond its lease; how many scopes that concerned."""
        freed = 0
        for work in self.works:
            found = free_lost(context.db, work, absent)
            if found:
                stuck = sum(found.values(), Counter[str]())
                scopes = [str(one) for one in islice(found, MAX_IDS)]
                log.warning("claims.given_back", flow=self.name, work=work.name, stuck=dict(stuck), scopes=scopes)
            freed += len(found)
        return freed

    def release_money(self, context: Context, owner: str = "") -> None:
        """End what accounts, or this caller's, have reserved for work that has ended."""
        if (unfinished := self.unfinished) is None:
            return
        with context.db.read() as session:
            over = accounts.ended(session, self.name, unfinished, owner)
        if over:
            context.db.run(lambda tx: accounts.release(tx, over))

    def release_all(self, context: Context, processes: Collection[str]) -> None:
        """Give back what these processes, which are ending, still hold; no attempt is counted."""
        for work in self.works:
            release(context.db, work, processes)

    def holders(self, context: Context) -> set[str]:
        """Every process that holds a claim."""
        with context.db.read() as session:
            return set[str]().union(*(holders(session, work) for work in self.works))

    def held(self, context: Context) -> list[Held]:
        """What processes hold now."""
        with context.db.read() as session:
            return [one for work in self.works for one in held(session, work)]

    def figures(self, context: Context, *, also_none: bool = False) -> dict[str, dict[str, int]]:
        """How many rows are in which state, for each kind that people follow; states without any if `also_none`."""
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
