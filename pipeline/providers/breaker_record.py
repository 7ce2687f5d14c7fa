"""What the database knows of a breaker: a row of `system_settings` for each that was ever open, and one of its past."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from sqlalchemy import func, select

from pipeline.engine import live_settings as live
from pipeline.engine.traces import AiCall
from pipeline.engine.transaction import Tx
from pipeline.engine.wire import VIEW
from pipeline.settings import ProviderProfile

PREFIX = "breaker."
HISTORY = "breaker_history."
REMEMBERED = 20
"""Changes of each breaker: all rows of `system_settings` are read every few seconds."""


@dataclass(frozen=True)
class BreakerRecord:
    """A breaker as it was last opened or closed."""

    until: int = 0
    """It is open until then, epoch ms; 0: it was closed."""
    reason: str = ""
    calls: int = 0
    """The newest call on record at that moment. What came before has been acted on.

    A number, not a time: hosts' clocks differ."""
    profile: str = ""
    """`profile_digest` of the settings that it opened with; empty if a person opened it."""


@dataclass(frozen=True)
class BreakerChange:
    """A breaker opened, or closed."""

    __pydantic_config__ = VIEW
    at: datetime
    state: str
    """`open` or `closed`."""
    reason: str
    until: datetime | None
    """When an open one was to let a probe through."""


def history(rows: Mapping[str, str], name: str) -> list[BreakerChange]:
    """The latest changes of a breaker, the newest first."""
    found = json.loads(rows.get(HISTORY + name, "[]"))
    return [
        BreakerChange(_at(at), "open" if until else "closed", reason, _at(until) if until else None)
        for at, until, reason in reversed(found)
    ]


def _at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def read(rows: Mapping[str, str], name: str) -> BreakerRecord:
    """The record of a breaker, by the rows of `system_settings`."""
    row = rows.get(PREFIX + name)
    return BreakerRecord(**json.loads(row)) if row else BreakerRecord()


def profile_digest(profile: ProviderProfile) -> str:
    """A digest that changes with address, model and key. It is too short to reveal the key."""
    facts = "\n".join([profile.base_url, profile.model, profile.api_key.get_secret_value()])
    return hashlib.sha256(facts.encode()).hexdigest()[:6]


def write(tx: Tx, name: str, until: int, reason: str, profile: str = "") -> None:
    """Record that a breaker opened, or with `until` 0 that it closed."""
    live.bump(tx)  # holds others off: whoever reads the newest call after this finds what this wrote
    newest = tx.execute(select(func.coalesce(func.max(AiCall.id), 0))).scalar_one()
    rows = live.stored(tx)
    known = json.loads(rows.get(HISTORY + name, "[]"))
    # A closed one is closed again by each of several successes.
    if until or (known and known[-1][1]):
        known.append([int(tx.now.timestamp() * 1000), until, reason])
        live.put(tx, HISTORY + name, known[-REMEMBERED:])
    live.put(tx, PREFIX + name, asdict(BreakerRecord(until, reason, newest, profile)))
