"""Retention of rows: by age, by number, or forever. Rows are deleted in portions, each in a short transaction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Column, ColumnElement, and_, delete, false, func, or_, select

from pipeline.engine.transaction import ReadTx
from pipeline.storage.context import Context

PORTION = 500
LEDGER_LEAST = timedelta(days=2)
"""Younger rows stay whatever the settings: daily spend caps and statistics count them."""


@dataclass(frozen=True)
class Rule:
    """Keep `days` days (0: any age), and the newest `count` (0: any number). Rows beyond either may be deleted."""

    days: float = 0
    count: int = 0

    def __str__(self) -> str:
        parts = [f"{self.days:g} days"] if self.days else []
        parts += [f"the newest {self.count:,}"] if self.count else []
        return ", ".join(parts) or "for ever"


@dataclass(frozen=True)
class Retention:
    """The retention of one kind of row or file. A flow lists its own: `Flow.retained`."""

    name: str
    kept: str
    """The retention period, for people."""
    due: Callable[[Context], int]
    """Returns how many items are due for removal."""
    remove: Callable[[Context], int]
    """Removes them and returns how many. Safe to repeat, and to run in parallel."""


def rows(
    name: str,
    rule: Rule,
    key: Column[Any],
    at: ColumnElement[datetime],
    *may_go: ColumnElement[bool],
    least: timedelta = timedelta(0),
    discard: Callable[[Context, Sequence[Any], ColumnElement[bool]], int] | None = None,
    portion: int = PORTION,
) -> Retention:
    """Return the retention of the rows in the table of `key`, by their time `at`, restricted to `may_go`.

    Rows younger than `least` stay. Due rows are deleted, unless `discard` does more: it receives keys and the
    condition that they matched, checks that again, and returns how many it removed.
    """

    def due(context: Context) -> int:
        with context.db.read() as session:
            over = _over(session, rule, key, at, may_go, least)
            return int(session.execute(select(func.count()).select_from(key.table).where(over)).scalar_one())

    def remove(context: Context) -> int:
        with context.db.read() as session:
            over = _over(session, rule, key, at, may_go, least)
        portion_keys = select(key).where(over).order_by(at, key).limit(portion)

        def next_portion() -> int:
            if discard is None:
                removal = delete(key.table).where(key.in_(portion_keys)).returning(key)
                return context.db.run(lambda tx: len(tx.execute(removal).all()))
            with context.db.read() as session:
                keys = list(session.execute(portion_keys).scalars())
            return discard(context, keys, over) if keys else 0

        total = 0
        while removed := next_portion():
            total += removed
        return total

    return Retention(name, str(rule), due, remove)


def _over(
    tx: ReadTx,
    rule: Rule,
    key: Column[Any],
    at: ColumnElement[datetime],
    may_go: Sequence[ColumnElement[bool]],
    least: timedelta,
) -> ColumnElement[bool]:
    """Return the condition for rows beyond the rule now. Its times and keys are fixed, even while rows come and go."""
    beyond: list[ColumnElement[bool]] = []
    if rule.days:
        beyond.append(at < tx.now - timedelta(days=rule.days))
    if rule.count:
        newest = select(at, key).where(*may_go).order_by(at.desc(), key.desc())
        first = tx.execute(newest.offset(rule.count).limit(1)).first()
        if first is not None:
            beyond.append(or_(at < first[0], and_(at == first[0], key <= first[1])))
    return and_(or_(false(), *beyond), at <= tx.now - least, *may_go)
