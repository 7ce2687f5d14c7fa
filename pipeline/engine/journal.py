"""Log lines for claims and changes of state, written once the transaction that made them has committed.

At INFO: changes of rows that have events (`engine.announced`). At DEBUG: every claim, and changes of all other units.
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
"""A line names at most so many rows."""


def listens() -> bool:
    """Whether the log's level is DEBUG, at which it also names changes of rows without events."""
    return _levels.isEnabledFor(logging.DEBUG)


def claimed(session: Session, work: str, scope: Any, rows: Sequence[Any], by: str) -> None:
    """Note a claim of units of a scope for the log, at level DEBUG, which is written after the commit. `by`: the column
    that identifies them for people, such as `page`."""
    if listens() and rows:
        known = {} if by in {"id", "created_at"} else {by: [getattr(row, by) for row in rows[:MAX_IDS]]}
        named = _named(row.id for row in rows)
        _note(session, logging.DEBUG, "unit.claimed", work=work, scope=str(scope), **known, **named)


def moved(
    session: Session, table: Table, kind: str, cause: StrEnum, changes: Mapping[Any, Any], ids: Iterable[Any]
) -> None:
    """Note for the log, which is written after the commit, that rows took the event `cause`. `changes`: the new state
    by the old."""
    level = logging.INFO if announced.of(table) else logging.DEBUG
    if not _levels.isEnabledFor(level) or not (named := _named(ids)):
        return
    states = {"from": _states(changes), "to": _states(changes.values())}
    _note(session, level, "state.changed", kind=kind, cause=cause.value, **states, **named)


def _named(ids: Iterable[Any]) -> dict[str, Any]:
    rows = iter(ids)
    shown = [str(row_id) for row_id in islice(rows, MAX_IDS)]
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
