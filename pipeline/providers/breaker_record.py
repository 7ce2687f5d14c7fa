"""What the database knows of a breaker: a row of `system_settings` for each that was ever open."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pipeline.engine import live_settings as live
from pipeline.engine.traces import AiCall

PREFIX = "breaker."


@dataclass(frozen=True)
class BreakerRecord:
    """A breaker as it was last opened or closed."""

    until: int = 0
    """It is open until then, epoch ms; 0: it was closed."""
    reason: str = ""
    calls: int = 0
    """The newest call on record at that moment. What came before has been acted on.

    A number, not a time: hosts' clocks differ."""


def read(rows: Mapping[str, str], name: str) -> BreakerRecord:
    """The record of a breaker, by the rows of `system_settings`."""
    row = rows.get(PREFIX + name)
    return BreakerRecord(**json.loads(row)) if row else BreakerRecord()


def write(session: Session, name: str, until: int, reason: str, now: datetime) -> None:
    """Record that a breaker opened, or with `until` 0 that it closed."""
    live.bump(session, now)  # holds others off: whoever reads the newest call after this finds what this wrote
    newest = session.execute(select(func.coalesce(func.max(AiCall.id), 0))).scalar_one()
    live.put(session, PREFIX + name, asdict(BreakerRecord(until, reason, newest)), now)
