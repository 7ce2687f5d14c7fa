"""Log lines for claims and changes of state, written once the transaction that made them has committed.

At INFO: how rows that people follow (`engine.announced`) move. At DEBUG: every claim, and how every other unit moves.
Lines of a worker name it: see `engine.logs.sign`.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum, StrEnum
from itertools import islice
from typing import Any

import structlog
from sqlalchemy import Table, event
from sqlalchemy.orm import Session

from pipeline.engine import announced

log = structlog.get_logger(__name__)
_levels = logging.getLogger(__name__)
_KEY = "journal.lines"
MAX_IDS = 20
"""Of more rows in one line, only these are named."""


def listens() -> bool:
    """Whether anybody wants to know of units that nobody follows."""
    return _levels.isEnabledFor(logging.DEBUG)


def claimed(session: Session, work: str, scope: Any, rows: Sequence[Any], by: str) -> None:
    """Note that units of a scope were claimed. `by`: the column that people know them by, such as `page`."""
    if listens() and rows:
        known = {} if by in {"id", "created_at"} else {by: [getattr(row, by) for row in rows[:MAX_IDS]]}
        named = _named(row.id for row in rows)
        _note(session, logging.DEBUG, "unit.claimed", work=work, scope=str(scope), **known, **named)


def moved(
    session: Session, table: Table, kind: str, cause: StrEnum, changes: Mapping[Any, Any], ids: Iterable[Any]
) -> None:
    """Note that rows took the event `cause`. `changes`: where that leads, by where it begins."""
    level = logging.INFO if announced.of(table) else logging.DEBUG
    if not _levels.isEnabledFor(level) or not (named := _named(ids)):
        return
    told = {"from": _states(changes), "to": _states(changes.values())}
    _note(session, level, "state.changed", kind=kind, cause=cause.value, **told, **named)


def _named(ids: Iterable[Any]) -> dict[str, Any]:
    rows = iter(ids)
    shown = [str(one) for one in islice(rows, MAX_IDS)]
    more = sum(1 for _ in rows)
    if len(shown) <= 1:
        return {"id": shown[0]} if shown else {}
    return {"ids": shown, "count": len(shown) + more}


def _states(states: Iterable[IntEnum | StrEnum]) -> str:
    return "|".join(dict.fromkeys(state.name for state in states))


def _note(session: Session, level: int, line: str, **fields: Any) -> None:
    session.info.setdefault(_KEY, []).append((level, line, fields))


@event.listens_for(Session, "after_commit")
def _write(session: Session) -> None:
    for level, line, fields in session.info.pop(_KEY, ()):
        log.log(level, line, **fields)
