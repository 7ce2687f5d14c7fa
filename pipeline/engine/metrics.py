"""Figures from the source of truth: rows by state, throughput, failures, queue depths."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, cast

from pydantic import PlainSerializer, computed_field
from redis import Redis
from sqlalchemy import ColumnElement, Integer, Table, func, select
from sqlalchemy import cast as cast_to
from sqlalchemy.orm import Session

from pipeline.engine.wire import VIEW


@dataclass(frozen=True)
class Throughput:
    """Figures of the attempts since a time. Rule: docs/sources/documents.md#monitoring."""

    __pydantic_config__ = VIEW
    finished: int
    failed: int
    per_minute: float
    """Successful attempts a minute, from the first attempt on."""
    mean_ms: float

    @computed_field  # type: ignore[prop-decorator]
    @property
    def failure_rate(self) -> Annotated[float, PlainSerializer(lambda rate: round(rate, 4), float)]:
        """The share of failed attempts, 0 to 1."""
        return self.failed / self.finished if self.finished else 0.0


def count_by(session: Session, column: ColumnElement[Any], *where: ColumnElement[bool]) -> dict[Any, int]:
    """Count the rows that match `where`, by the column's value."""
    counted = session.execute(select(column, func.count()).where(*where).group_by(column))
    return dict(counted.all())


def throughput(session: Session, attempts: Table, since: datetime, now: datetime) -> Throughput:
    """Return figures of a ledger of attempts (columns `created_at`, `latency_ms`, `status`) since a time. `now`: the
    end for the rate.

    The rate starts at the first attempt, so that an idle hour before it does not lower it.
    """
    ok = attempts.c.status == "completed"
    row = session.execute(
        select(
            func.count(),
            func.sum(cast_to(ok, Integer)),
            func.avg(attempts.c.latency_ms).filter(ok),
            func.min(attempts.c.created_at),
        ).where(attempts.c.created_at >= since)
    ).one()
    finished, good, mean, first = row[0], int(row[1] or 0), float(row[2] or 0), row[3]
    minutes = max((now - first).total_seconds() / 60, 1 / 60) if first else 1.0
    return Throughput(finished, finished - good, round(good / minutes, 1), round(mean, 1))


@dataclass(frozen=True)
class Minute:
    """The numbers of attempts, and of failed ones, that ended within one minute."""

    __pydantic_config__ = VIEW
    begins: datetime
    finished: int
    failed: int


def by_minute(session: Session, attempts: Table, since: datetime) -> list[Minute]:
    """Count a ledger's attempts (see `throughput`) in each minute from `since` that has any, oldest first."""
    at, ok = attempts.c.created_at, cast_to(attempts.c.status == "completed", Integer)
    if session.get_bind().dialect.name == "sqlite":
        minute: ColumnElement[Any] = func.substr(at, 1, 16)
    else:
        minute = func.to_char(func.timezone("UTC", at), "YYYY-MM-DD HH24:MI")
    chosen = select(minute.label("minute"), ok.label("ok")).where(at >= since).subquery().c
    query = select(chosen.minute, func.count(), func.sum(chosen.ok)).group_by(chosen.minute).order_by(chosen.minute)
    return [
        Minute(datetime.fromisoformat(text).replace(tzinfo=UTC), count, count - int(good or 0))
        for text, count, good in session.execute(query)
    ]


SENT = "penstock_sent"
"""The header with the time when a message was sent, by its sender's clock, in µs. It only orders messages given
back by gates: a wrong clock costs their order and nothing else."""
PRIORITY_SUFFIXES = ("", *(f"\x06\x16{step}" for step in (3, 6, 9)))
"""Suffixes of a queue's lists: kombu keeps one list for each priority step."""


def queue_depths(redis: "Redis", queues: Iterable[str]) -> dict[str, int]:
    """Count the waiting messages of each queue, over all priorities, without messages under way."""
    names = list(queues)
    with redis.pipeline(transaction=False) as pipe:
        for name in names:
            for suffix in PRIORITY_SUFFIXES:
                pipe.llen(f"{name}{suffix}")
        lengths = cast("list[int]", pipe.execute())
    steps = len(PRIORITY_SUFFIXES)
    return {name: sum(lengths[at * steps : (at + 1) * steps]) for at, name in enumerate(names)}


def oldest_messages_s(redis: "Redis", queues: Iterable[str]) -> dict[str, float]:
    """The age of each queue's next message by its sender's clock, in seconds; 0 for an empty queue.

    With several priorities, the oldest of their next messages counts.
    """
    names = list(queues)
    with redis.pipeline(transaction=False) as pipe:
        pipe.time()
        for name in names:
            for suffix in PRIORITY_SUFFIXES:
                pipe.lindex(f"{name}{suffix}", -1)
        (seconds, micros), *messages = pipe.execute()
    now_us, steps = seconds * 1_000_000 + micros, len(PRIORITY_SUFFIXES)
    return {
        name: max(_age_s(message, now_us) for message in messages[at * steps : (at + 1) * steps])
        for at, name in enumerate(names)
    }


def _age_s(message: str | None, now_us: int) -> float:
    try:
        sent_us = int(json.loads(message or "{}")["headers"][SENT])
    except (ValueError, TypeError, KeyError):
        return 0.0  # a foreign message
    return max(0.0, (now_us - sent_us) / 1e6)
