"""Events: how documents, runs, batches and knowledge items changed, in order and without gaps."""

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
"""Seconds between two reads of new events; Redis announces a change at once."""
_CLOSE_S = 10.0


@dataclass(frozen=True)
class Filter:
    """A filter of events. Empty: all."""

    flow: str = ""
    types: tuple[str, ...] = ()
    """Types, or patterns such as `document.*`."""
    scope_id: str = ""
    """Only those about this document, run, batch or item."""

    def matches(self, event: Event) -> bool:
        return self.flow in {"", event.flow} and self.scope_id in {"", event.scope_id} and wants(self.types, event.type)

    def matches_progress(self, fields: dict[str, str]) -> bool:
        """Whether progress, as `progress` gives it, belongs to what is wanted."""
        mine = self.scope_id == "" or self.scope_id in fields.values()
        return self.flow in {"", fields.get("flow")} and mine and wants(self.types, "progress")


@dataclass(frozen=True)
class Kept:
    """Which events are kept: from `first` to `last`. None yet: `first` is the next one."""

    first: int
    last: int


class EventsGone(UserError):
    """Some of the events asked for are not kept any more. Look at how things stand, and go on after `kept.last`."""

    def __init__(self, after: int, found: Kept) -> None:
        message = f"events after number {after} are not all kept: there are those from {found.first} to {found.last}"
        super().__init__(message, code="events_gone")
        self.kept = found


class UnknownEvent(UserError):
    """The event with this number does not exist, or retention deleted it."""

    def __init__(self, seq: int) -> None:
        super().__init__(f"there is no event {seq}, or it is not kept any more", code="unknown_event")


@operation(Scope.READ)
def kept(caller: Caller) -> Kept:
    """Which events are kept."""
    with caller.context.db.read() as session:
        return Kept(outbox.first_seq(session), outbox.last_seq(session))


@operation(Scope.READ)
def after(caller: Caller, seq: int, limit: int = PORTION, *, types: Sequence[str] = ()) -> list[Event]:
    """Up to `limit` events after this number, in order; of these, those of the types wanted.

    Raises `UserError` for a type that no event has.
    """
    _wanted("", types, "")
    with caller.context.db.read() as session:
        return [one for one in outbox.after(session, seq, limit) if wants(types, one.type)]


@operation(Scope.READ)
def newest(caller: Caller, wanted: Filter = Filter(), *, before: int | None = None, limit: int = 50) -> list[Event]:
    """The events that are kept, the newest first. `before`: only those with a lower number."""
    with caller.context.db.read() as session:
        return outbox.newest(
            session, flow=wanted.flow, patterns=wanted.types, scope_id=wanted.scope_id, before=before, limit=limit
        )


@operation(Scope.READ)
def one(caller: Caller, seq: int) -> Event:
    """One event by its number. Raises `UnknownEvent`."""
    with caller.context.db.read() as session:
        found = outbox.one(session, seq)
    if found is None:
        raise UnknownEvent(seq)
    return found


@operation(Scope.READ)
def after_if_possible(caller: Caller, seq: int) -> list[Event]:
    """Like `after`, and empty while the database is away: for those who will ask again."""
    try:
        return after.by(caller, seq)
    except SQLAlchemyError as error:
        log.warning("events.not_read", error=type(error).__name__)
        return []


@operation(Scope.READ)
def progress_from(caller: Caller) -> str:
    """Where progress stands, from which to read on. Raises `RedisError`."""
    return live.last_id(caller.context.redis)


@operation(Scope.READ)
def progress(caller: Caller, position: str, wait_s: float) -> list[tuple[str, dict[str, str]]]:
    """Progress of what is under way: (its position, its fields). Waits for the first. Raises `RedisError`."""
    return list(live.read(caller.context.redis, position, wait_s))


def types() -> list[str]:
    """Every type of event that there may be."""
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
    """The events after this number (None: from this call on) as they come, each once, in order.

    Waits for the next one, and ends after `timeout_s` seconds; None: never. Rides over a restart of the database.
    Raises `EventsGone` if some of them are not kept any more, and `UserError` for a type that no event has.
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
    """Call `handler` with each of the events that `follow` would give, in a thread, until the subscription is closed.

    What the handler raises is logged, and ends nothing. Raises what `follow` raises.
    """
    return Subscription(handler, _begin(after), _wanted(flow, types, scope_id))


class Subscription:
    """A handler of events at work. A context manager: leaving it closes the subscription."""

    def __init__(self, handler: Callable[[Event], object], begin: int, wanted: Filter) -> None:
        self.last = begin
        """The number of the last event that the handler was called with: begin after it the next time."""
        self._handler = handler
        self._end = float("inf")
        found = _follow(begin, wanted, None, lambda last: last >= self._end)
        self._thread = Thread(target=self._run, args=(found,), name="penstock-events", daemon=True)
        self._thread.start()

    def _run(self, found: Iterator[Event]) -> None:
        for event in found:
            if event.seq > self._end:
                return
            try:
                self._handler(event)
            except Exception:  # a handler's own defect: others get their events
                log.exception("events.handler_failed", type=event.type, seq=event.seq)
            self.last = event.seq

    def close(self) -> None:
        """Call the handler with all events until now, then stop.

        Called by the handler itself, it stops at once; otherwise after ten seconds at most, or without the
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
    """What moves from now on, as commands show it: pages counted, batches begun and ended with the time each part took.

    Of the moment: not replayed, and lost while Redis is away. Ends after `timeout_s` seconds.
    """
    position = ""
    with suppress(RedisError):
        position = progress_from()
    return _follow_progress(position, Filter(flow, (), scope_id), _deadline(timeout_s))


def _follow_progress(position: str, wanted: Filter, deadline: float) -> Iterator[dict[str, str]]:
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            position = position or progress_from()
            found = progress(position, min(left_s, 5.0))
        except RedisError:
            time.sleep(min(left_s, LOOK_S))
            continue
        position = found[-1][0] if found else position
        yield from (fields for _, fields in found if wanted.matches_progress(fields))


def _deadline(timeout_s: float | None) -> float:
    return float("inf") if timeout_s is None else time.monotonic() + timeout_s


def _begin(after: int | None) -> int:
    found = kept()
    if after is not None and not found.first - 1 <= after <= found.last:
        raise EventsGone(after, found)
    return found.last if after is None else after


def _wanted(flow: str, patterns: Sequence[str], scope_id: str) -> Filter:
    if strange := announced.unknown(patterns, types()):
        raise UserError(f"no event has the type {', '.join(strange)}: see `tasks.events.types()`", code="bad_type")
    return Filter(flow, tuple(patterns), scope_id)


def _follow(last: int, wanted: Filter, timeout_s: float | None, has_ended: Callable[[int], bool]) -> Iterator[Event]:
    deadline = _deadline(timeout_s)
    with Listener() as listener:
        while not has_ended(last):
            found = after_if_possible(last)
            for one in found:
                last = one.seq
                if wanted.matches(one):
                    yield one
            left_s = min(LOOK_S, deadline - time.monotonic())
            if left_s <= 0:
                return
            if not found:
                listener.pause(lambda _: True, left_s)
