"""Events: changes of documents, runs, batches and knowledge items, in order and without gaps."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread, current_thread
from types import TracebackType
from typing import Self

import structlog
from redis import RedisError
from sqlalchemy.exc import SQLAlchemyError

from pipeline.engine import announced, outbox
from pipeline.engine import events as live
from pipeline.engine.announced import wants
from pipeline.engine.errors import UserError
from pipeline.engine.outbox import Event
from pipeline.flows import flows
from pipeline.operations.caller import Caller
from pipeline.operations.operation import operation
from pipeline.operations.watch import Listener
from pipeline.storage.api_keys import Scope

log = structlog.get_logger(__name__)
PORTION = 500
LOOK_S = 0.5
"""Longest time between two reads of new events, in seconds; Redis announces a change at once."""
_CLOSE_S = 10.0


@dataclass(frozen=True)
class Filter:
    """A filter of events. Empty fields match all events."""

    flow: str = ""
    types: tuple[str, ...] = ()
    """Types, or patterns such as `document.*`."""
    scope_id: str = ""
    """Only events of this document, run, batch or item."""

    def matches(self, event: Event) -> bool:
        return self.flow in {"", event.flow} and self.scope_id in {"", event.scope_id} and wants(self.types, event.type)

    def matches_progress(self, fields: dict[str, str]) -> bool:
        """Whether an entry of `progress` matches."""
        in_scope = self.scope_id == "" or self.scope_id in fields.values()
        return self.flow in {"", fields.get("flow")} and in_scope and wants(self.types, "progress")


@dataclass(frozen=True)
class KeptRange:
    """The range of kept events, from `first` to `last`. Without events, `first` is the next number."""

    first: int
    last: int


class EventsGone(UserError):
    """Retention deleted some of the requested events. Read the current state, and continue after `kept.last`."""

    def __init__(self, after: int, kept: KeptRange) -> None:
        message = f"not all events after number {after} are kept: only events {kept.first} to {kept.last} are"
        super().__init__(message, code="events_gone")
        self.kept = kept


class UnknownEvent(UserError):
    """The event with this number does not exist, or retention deleted it."""

    def __init__(self, seq: int) -> None:
        super().__init__(f"unknown event {seq}: it does not exist, or retention deleted it", code="unknown_event")


@operation(Scope.READ)
def kept(caller: Caller) -> KeptRange:
    """Return the numbers of the first and the last kept event."""
    with caller.context.db.read() as session:
        return KeptRange(outbox.first_seq(session), outbox.last_seq(session))


@operation(Scope.READ)
def after(caller: Caller, seq: int, limit: int = PORTION, *, types: Sequence[str] = ()) -> list[Event]:
    """Read up to `limit` events after this number, in order, and return those of these types: perhaps none, although
    more follow. No `types`: all.

    Raises `UserError` for an unknown type.
    """
    _wanted("", types, "")
    with caller.context.db.read() as session:
        return [event for event in outbox.after(session, seq, limit) if wants(types, event.type)]


@operation(Scope.READ)
def newest(caller: Caller, wanted: Filter = Filter(), *, before: int | None = None, limit: int = 50) -> list[Event]:
    """Return kept events, newest first. `before`: only events with a lower number."""
    with caller.context.db.read() as session:
        return outbox.newest(
            session, flow=wanted.flow, patterns=wanted.types, scope_id=wanted.scope_id, before=before, limit=limit
        )


@operation(Scope.READ)
def one(caller: Caller, seq: int) -> Event:
    """Return one event by its number. Raises `UnknownEvent`."""
    with caller.context.db.read() as session:
        event = outbox.one(session, seq)
    if event is None:
        raise UnknownEvent(seq)
    return event


@operation(Scope.READ)
def after_if_possible(caller: Caller, seq: int) -> list[Event]:
    """Return the next events after this number, in order, at most `PORTION`; none while the database is unreachable:
    for callers that retry."""
    try:
        return after.by(caller, seq)
    except SQLAlchemyError as error:
        log.warning("events.not_read", error=type(error).__name__)
        return []


@operation(Scope.READ)
def progress_from(caller: Caller) -> str:
    """Return the position of the newest entry in the stream of progress, for `progress`. Raises `RedisError`."""
    return live.last_id(caller.context.redis)


@operation(Scope.READ)
def progress(caller: Caller, position: str, wait_s: float) -> list[tuple[str, dict[str, str]]]:
    """Return progress after a position, as (position, fields). Waits up to `wait_s` seconds for the first entry. Raises
    `RedisError`."""
    return list(live.read(caller.context.redis, position, wait_s))


def types() -> list[str]:
    """Return every possible type of event."""
    flows()
    return announced.every_type()


def follow(
    after: int | None = None,
    *,
    flow: str = "",
    types: Sequence[str] = (),
    scope_id: str = "",
    timeout_s: float | None = None,
) -> Iterator[Event]:
    """Yield the events after this number (None: from this call on) as they occur, each once, in order.

    Ends after `timeout_s` seconds; None: never. Survives a restart of the database.
    Raises `EventsGone` if retention deleted some of them, and `UserError` for an unknown type.
    """
    return _follow(_begin(after), _wanted(flow, types, scope_id), timeout_s, lambda _: False)


def subscribe(
    handler: Callable[[Event], object],
    after: int | None = None,
    *,
    flow: str = "",
    types: Sequence[str] = (),
    scope_id: str = "",
) -> "Subscription":
    """Call `handler` with each event of `follow`, in a thread, until the subscription is closed.

    Logs exceptions of the handler and continues. Raises `EventsGone` or `UserError`.
    """
    return Subscription(handler, _begin(after), _wanted(flow, types, scope_id))


class Subscription:
    """A running handler of events. A context manager: leaving it closes the subscription."""

    def __init__(self, handler: Callable[[Event], object], begin: int, wanted: Filter) -> None:
        self.last = begin
        """The number of the last handled event: subscribe after it the next time."""
        self._handler = handler
        self._end = float("inf")
        events = _follow(begin, wanted, None, lambda last: last >= self._end)
        self._thread = Thread(target=self._run, args=(events,), name="penstock-events", daemon=True)
        self._thread.start()

    def _run(self, events: Iterator[Event]) -> None:
        for event in events:
            if event.seq > self._end:
                return
            try:
                self._handler(event)
            except Exception:  # the handler's defect: the next events follow
                log.exception("events.handler_failed", type=event.type, seq=event.seq)
            self.last = event.seq

    def close(self) -> None:
        """Let the handler finish all events until now, then stop.

        Called by the handler itself, it stops at once; otherwise after ten seconds at most. Stops at once without the
        database.
        """
        if current_thread() is not self._thread:
            with suppress(SQLAlchemyError):
                self._end = min(self._end, kept().last)
                self._thread.join(_CLOSE_S)
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def follow_progress(*, flow: str = "", scope_id: str = "", timeout_s: float | None = None) -> Iterator[dict[str, str]]:
    """Yield progress from now on: pages counted, batches started and ended, with the time that each part took.

    Progress is not replayed, and lost while Redis is unreachable. Ends after `timeout_s` seconds.
    """
    position = ""
    with suppress(RedisError):
        position = progress_from()
    return _follow_progress(position, Filter(flow, (), scope_id), _deadline(timeout_s))


def _follow_progress(position: str, wanted: Filter, deadline: float) -> Iterator[dict[str, str]]:
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            position = position or progress_from()
            entries = progress(position, min(left_s, 5.0))
        except RedisError:
            time.sleep(min(left_s, LOOK_S))
            continue
        position = entries[-1][0] if entries else position
        yield from (fields for _, fields in entries if wanted.matches_progress(fields))


def _deadline(timeout_s: float | None) -> float:
    return float("inf") if timeout_s is None else time.monotonic() + timeout_s


def _begin(after: int | None) -> int:
    range_ = kept()
    if after is not None and not range_.first - 1 <= after <= range_.last:
        raise EventsGone(after, range_)
    return range_.last if after is None else after


def _wanted(flow: str, patterns: Sequence[str], scope_id: str) -> Filter:
    if unknown := announced.unknown(patterns, types()):
        raise UserError(f"no event has the type {', '.join(unknown)}: see `tasks.events.types()`", code="bad_type")
    return Filter(flow, tuple(patterns), scope_id)


def _follow(last: int, wanted: Filter, timeout_s: float | None, has_ended: Callable[[int], bool]) -> Iterator[Event]:
    deadline = _deadline(timeout_s)
    with Listener() as listener:
        while not has_ended(last):
            events = after_if_possible(last)
            for event in events:
                last = event.seq
                if wanted.matches(event):
                    yield event
            left_s = min(LOOK_S, deadline - time.monotonic())
            if left_s <= 0:
                return
            if not events:
                listener.pause(lambda _: True, left_s)
