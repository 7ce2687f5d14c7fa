"""Transactions, and the messages and news that they request for after their commit."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from sqlalchemy.orm import Session

from pipeline.settings import Settings


@dataclass
class Dispatch:
    """Requests of a transaction for after its commit: by flow, launches, news of rows and wake-ups; and gates to check.

    The launcher reads the rows and sends only the messages that they still need, so extra requests do no harm.
    """

    launches: dict[str, dict[str, None]] = field(default_factory=dict)
    """Scopes with work to do, each once, in the order of the requests."""
    news: dict[str, dict[str, None]] = field(default_factory=dict)
    """Visibly changed rows, each once."""
    wakes_s: dict[str, float] = field(default_factory=dict)
    """Seconds until the next unit of a flow is due."""
    gates: dict[str, None] = field(default_factory=dict)
    """Queues whose gates may have opened or closed."""

    @classmethod
    def of(cls, session: Session) -> "Dispatch":
        """The requests for after the commit that the session's transaction has made so far."""
        dispatch: Dispatch = session.info.setdefault(cls, cls())
        return dispatch

    def launch(self, flow: str, scopes: Iterable[str]) -> None:
        """Request the messages that these scopes' rows need."""
        self.launches.setdefault(flow, {}).update(dict.fromkeys(scopes))

    def announce(self, flow: str, rows: Iterable[Any]) -> None:
        """Request that the state of these rows is published."""
        self.news.setdefault(flow, {}).update(dict.fromkeys(map(str, rows)))

    def wake_in(self, flow: str, wait_s: float) -> None:
        """Request a wake-up of the flow in `wait_s` seconds; the earliest request counts."""
        self.wakes_s[flow] = min(wait_s, self.wakes_s.get(flow, wait_s))

    def add(self, other: "Dispatch") -> None:
        """Add the requests of another transaction."""
        for flow, scopes in other.launches.items():
            self.launch(flow, scopes)
        for flow, rows in other.news.items():
            self.announce(flow, rows)
        for flow, wait_s in other.wakes_s.items():
            self.wake_in(flow, wait_s)
        self.gates.update(other.gates)

    def __bool__(self) -> bool:
        return bool(self.launches or self.news or self.wakes_s or self.gates)


class ReadTx(Session):
    """A reading transaction: a session with the settings and the time."""

    def __init__(self, *args: Any, settings: Settings, clock: Callable[[], datetime], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings = settings
        self._clock = clock

    @cached_property
    def now(self) -> datetime:
        """The database's time at the first read of this property: read it after locking."""
        return self._clock()


class Tx(ReadTx):
    """A writing transaction.

    The context's launcher performs its requests (`launch`, `announce`, `wake_in`) after the commit, and never after a
    rollback. If a try of the transaction was repeated, this includes the requests of the earlier try, which may have
    committed although its answer was lost.
    """

    def launch(self, flow: str, *scopes: str) -> None:
        """After the commit, send the messages that these scopes' rows need and that are not on their way."""
        Dispatch.of(self).launch(flow, scopes)

    def announce(self, flow: str, *rows: Any) -> None:
        """After the commit, publish the state of these rows. Changes of status do this without a request."""
        Dispatch.of(self).announce(flow, rows)

    def wake_in(self, flow: str, wait_s: float | None) -> None:
        """After the commit, request a wake-up of the flow in `wait_s` seconds; None: no wake-up."""
        if wait_s is not None:
            Dispatch.of(self).wake_in(flow, wait_s)
