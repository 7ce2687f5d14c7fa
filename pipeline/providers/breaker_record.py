"""The database's record of breakers: a row of `system_settings` for each that was ever open, and one of its past."""

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
"""Changes kept for each breaker; few, since all rows of `system_settings` are read every few seconds."""


@dataclass(frozen=True)
class BreakerRecord:
    """The last opening or closing of a breaker."""

    until: int = 0
    """Open until then, epoch ms; 0: closed."""
    reason: str = ""
    calls: int = 0
    """The newest call on record at that time. Earlier calls have been acted on.

    A number, not a time: hosts' clocks differ."""
    profile: str = ""
    """`profile_digest` of the settings with which it opened; empty if a person opened it."""


@dataclass(frozen=True)
class BreakerChange:
    """An opening or closing of a breaker."""

    __pydantic_config__ = VIEW
    at: datetime
    state: str
    """`open` or `closed`."""
    reason: str
    until: datetime | None
    """When an open breaker was to admit a probe."""


def history(rows: Mapping[str, str], name: str) -> list[BreakerChange]:
    """Return the latest changes of a breaker, newest first, at most `REMEMBERED`, from the rows of
    `system_settings`."""
    changes = json.loads(rows.get(HISTORY + name, "[]"))
    return [
        BreakerChange(_at(at), "open" if until else "closed", reason, _at(until) if until else None)
        for at, until, reason in reversed(changes)
    ]


def _at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def read(rows: Mapping[str, str], name: str) -> BreakerRecord:
    """Return the record of a breaker from the rows of `system_settings`; a closed one without a row."""
    row = rows.get(PREFIX + name)
    return BreakerRecord(**json.loads(row)) if row else BreakerRecord()


def profile_digest(profile: ProviderProfile) -> str:
    """Return a digest that changes with address, model and key. It is too short to reveal the key."""
    facts = "\n".join([profile.base_url, profile.model, profile.api_key.get_secret_value()])
    return hashlib.sha256(facts.encode()).hexdigest()[:6]


def write(tx: Tx, name: str, until: int, reason: str, profile: str = "") -> None:
    """Record that a breaker opened until `until` (epoch ms), or with 0 that it closed; add that to its history.
    `profile`: the `profile_digest` of the settings with which it opened; empty if a person opened it."""
    live.bump(tx)  # locks out other writers: their next read includes this record
    newest = tx.execute(select(func.coalesce(func.max(AiCall.id), 0))).scalar_one()
    rows = live.stored(tx)
    known = json.loads(rows.get(HISTORY + name, "[]"))
    # Each of several successes closes a closed breaker again.
    if until or (known and known[-1][1]):
        known.append([int(tx.now.timestamp() * 1000), until, reason])
        live.put(tx, HISTORY + name, known[-REMEMBERED:])
    live.put(tx, PREFIX + name, asdict(BreakerRecord(until, reason, newest, profile)))
