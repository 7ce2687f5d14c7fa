"""Transactions, and what it asks to be sent once it has committed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from sqlalchemy.orm import Session

from pipeline.settings import Settings


@dataclass
class Dispatch:
    """What is to be sent after a commit: by flow, messages for scopes, news of rows, wake-ups; and gates to look at.

    Sending looks at the rows: what they no longer ask for is not sent, so asking too often does no harm.
    """

    launches: dict[str, dict[str, None]] = field(default_factory=dict)
    """Scopes that have something to do, each once, in the order in which they were named."""
    news: dict[str, dict[str, None]] = field(default_factory=dict)
    """Rows that changed visibly, each once."""
    wakes_s: dict[str, float] = field(default_factory=dict)
    """Seconds until the next unit of a flow is due."""
    gates: dict[str, None] = field(default_factory=dict)
    """Queues whose gates may have opened or closed."""

    @classmethod
    def of(cls, session: Session) -> "Dispatch":
        """What the session's transaction asks for."""
        found: Dispatch = session.info.setdefault(cls, cls())
        return found

    def launch(self, flow: str, scopes: Iterable[str]) -> None:
        """Send what these scopes' rows ask for."""
        self.launches.setdefault(flow, {}).update(dict.fromkeys(scopes))

    def tell(self, flow: str, rows: Iterable[Any]) -> None:
        """Publish how these rows stand."""
        self.news.setdefault(flow, {}).update(dict.fromkeys(map(str, rows)))

    def wake_in(self, flow: str, wait_s: float) -> None:
        """Look at the flow again in `wait_s` seconds."""
        self.wakes_s[flow] = min(wait_s, self.wakes_s.get(flow, wait_s))

    def add(self, other: "Dispatch") -> None:
        """Ask for all that the other one asks for."""
        for flow, scopes in other.launches.items():
            self.launch(flow, scopes)
        for flow, rows in other.news.items():
            self.tell(flow, rows)
        for flow, wait_s in other.wakes_s.items():
            self.wake_in(flow, wait_s)
        self.gates.update(other.gates)

    def __bool__(self) -> bool:
        return bool(self.launches or self.news or self.wakes_s or self.gates)


class ReadTx(Session):
    """A transaction that may read: a session that knows the settings and the time."""

    def __init__(self, *args: Any, settings: Settings, clock: Callable[[], datetime], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings = settings
        self._clock = clock

    @cached_property
    def now(self) -> datetime:
        """The database's time when this was first asked for: ask after locking."""
        return self._clock()


class Tx(ReadTx):
    """A transaction that may write as well.

    What it asks to be launched, told or woken, the context's launcher sends after the commit, and never after a
    rollback. If a try of the transaction was repeated, what the earlier try asked for is sent as well: it may have been
    committed though the answer was lost.
    """

    def launch(self, flow: str, *scopes: str) -> None:
        """After the commit, send what these scopes' rows ask for and what is not on its way."""
        Dispatch.of(self).launch(flow, scopes)

    def tell(self, flow: str, *rows: Any) -> None:
        """After the commit, publish how these rows stand. Changes of their status are told anyway."""
        Dispatch.of(self).tell(flow, rows)

    def wake_in(self, flow: str, wait_s: float | None) -> None:
        """After the commit, see to it that the flow is looked at in `wait_s` seconds; None: not because of this."""
        if wait_s is not None:
            Dispatch.of(self).wake_in(flow, wait_s)
