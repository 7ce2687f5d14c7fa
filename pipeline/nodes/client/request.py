"""The unanswered requests of a session, limited in number and bytes, and sent once on each connection."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.tables import storable
from pipeline.nodes.protocol import Attachment, BadMessage, JobRequest, SessionResult, encode

log = structlog.get_logger(__name__)
OnPartial = Callable[[int, str], None]
OnSent = Callable[[], None]


@dataclass(frozen=True)
class SessionReply:
    """An answer. `node_id`: the node that gave it; `attempt`: the number of its attempt."""

    result: dict[str, Any]
    attachments: tuple[tuple[Attachment, bytes], ...] = ()
    attempt: int = 1
    node_id: str = ""


class JobFailed(UnitError):
    """The gateway or a node answered the job with an error. Other `UnitError`s are those of the session."""


Outcome = SessionReply | UnitError


def failed(message: str, kind: ErrorKind, code: str, retry_after_s: float | None = None) -> UnitError:
    """Return an error whose text is storable, because parts of it may come from another program."""
    return UnitError(storable(message), kind=kind, code=code, retry_after_s=retry_after_s)


@dataclass(frozen=True)
class Bundle:
    """An encoded request."""

    request_id: str
    head: bytes
    parts: tuple[bytes, ...]

    @classmethod
    def of(cls, attachments: Sequence[tuple[Attachment, bytes]], timeout_s: float, **fields: Any) -> "Bundle":
        """Encode a request. Raises `UnitError` if the protocol does not allow it."""
        announced = [{**about.model_dump(), "size": len(part)} for about, part in attachments]
        try:
            request = JobRequest.model_validate(
                {**fields, "attachments": announced, "timeout_ms": max(1, round(timeout_s * 1000))}
            )
            head = encode(request).encode()
        except ValidationError as error:
            wrong = error.errors(include_input=False, include_url=False)[0]
            name = ".".join(map(str, wrong["loc"]))
            raise failed(f"{name}: {wrong['msg']}", ErrorKind.PERMANENT, "bad_request") from None
        except (PydanticSerializationError, UnicodeEncodeError, ValueError, RecursionError):
            raise failed("the request cannot be sent as JSON", ErrorKind.PERMANENT, "bad_request") from None
        return cls(request.request_id, head, tuple(part for _, part in attachments))

    @property
    def size(self) -> int:
        """The size in bytes."""
        return len(self.head) + sum(map(len, self.parts))


@dataclass(eq=False)
class Pending:
    """A request with its waiters."""

    bundle: Bundle
    entered: float
    answer: asyncio.Future[Outcome]
    waiters: int = 0
    sends: int = 0
    accepted: bool = False
    """The gateway has accepted the request on this connection."""
    kept: bool = False
    """Do not cancel the job when the last waiter leaves: a repeated request gets its answer."""
    attempt: int = 1
    on_partial: list[OnPartial] = field(default_factory=list)
    on_sent: list[OnSent] = field(default_factory=list)

    def was_sent(self) -> None:
        """Count one sending of the request; at the first, call the `on_sent` callbacks."""
        self.sends += 1
        callbacks, self.on_sent = self.on_sent, []
        for callback in callbacks:
            _call(callback)

    def piece(self, attempt: int, text: str) -> None:
        """Pass a piece of the answer's text to the `on_partial` callbacks, unless a later attempt has sent a piece
        already."""
        if attempt >= self.attempt:
            self.attempt = attempt
            for callback in self.on_partial:
                _call(callback, attempt, text)


class Pendings:
    """All unanswered requests: at most `max_count`, of `max_bytes` together."""

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._known: dict[str, Pending] = {}
        self._bytes = 0
        self._count = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Requests that wait for room: their sizes, and the futures that admit them."""
        self._unsent: deque[Pending] = deque()
        self._in_flight: set[str] = set()
        self._window = 0
        self._cancels: dict[str, None] = {}
        self._changed = asyncio.Event()

    def __iter__(self) -> Iterator[Pending]:
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    def get(self, request_id: str) -> Pending | None:
        """Return the unanswered request of this id, or None."""
        return self._known.get(request_id)

    async def enter(self, bundle: Bundle, on_partial: OnPartial | None, on_sent: OnSent | None) -> Pending:
        """Add a waiter to the request. Waits for room to add the request itself, unless its id is known already."""
        pending = self._known.get(bundle.request_id)
        if pending is None:
            await self._wait_for_room(bundle.size)
            pending = self._known.get(bundle.request_id)
            if pending is not None:  # another call added the same request first
                self._free_room(bundle.size)
            else:
                pending = self._add(bundle)
        pending.waiters += 1
        pending.kept = False
        if on_partial is not None:
            pending.on_partial.append(on_partial)
        if on_sent is not None and pending.sends:
            _call(on_sent)
        elif on_sent is not None:
            pending.on_sent.append(on_sent)
        return pending

    def _add(self, bundle: Bundle) -> Pending:
        loop = asyncio.get_running_loop()
        pending = self._known[bundle.request_id] = Pending(bundle, loop.time(), loop.create_future())
        self._cancels.pop(bundle.request_id, None)
        self._unsent.append(pending)
        self._changed.set()
        return pending

    def leave(self, pending: Pending) -> None:
        """Remove a waiter. When the last leaves, forget the request; if it was sent and not `kept`, `changed` returns
        its id for cancelling."""
        pending.waiters -= 1
        if not pending.waiters and self._forget(pending) and pending.sends and not pending.kept:
            self._cancels[pending.bundle.request_id] = None
            while len(self._cancels) > self._max_count:  # they accumulate while there is no connection
                del self._cancels[next(iter(self._cancels))]

    def settle(self, pending: Pending | None, outcome: Outcome) -> None:
        """Give the outcome to the request's waiters. Harmless if the request has one already."""
        if pending is not None and self._forget(pending):
            pending.answer.set_result(outcome)

    def _forget(self, pending: Pending) -> bool:
        if self._known.get(pending.bundle.request_id) is not pending:
            return False
        del self._known[pending.bundle.request_id]
        self._in_flight.discard(pending.bundle.request_id)
        self._changed.set()
        self._free_room(pending.bundle.size)
        return True

    def connected(self, window: int) -> None:
        """Mark all requests as unsent, for a new connection that takes at most `window` unanswered requests."""
        self._window = window
        self._in_flight.clear()
        self._unsent = deque(self._known.values())
        for pending in self._unsent:
            pending.accepted = False
        self._changed.set()

    async def changed(self) -> list[str]:
        """Wait until a request was added, answered or left, or a connection opened. Returns each id to cancel once."""
        await self._changed.wait()
        self._changed.clear()
        cancels = list(self._cancels)
        self._cancels.clear()
        return cancels

    def next_unsent(self) -> Pending | None:
        """Return the next request to send on this connection. None: all are sent, or the window is full."""
        while self._unsent and len(self._in_flight) < self._window:
            pending = self._unsent.popleft()
            if self._known.get(pending.bundle.request_id) is pending:
                self._in_flight.add(pending.bundle.request_id)
                return pending
        return None

    def unaccepted(self) -> list[Pending]:
        """Return the requests that were sent on this connection and that the gateway has not accepted."""
        return [pending for pending in self if pending.bundle.request_id in self._in_flight and not pending.accepted]

    async def _wait_for_room(self, size: int) -> None:
        if size > self._max_bytes:
            message = f"the request is too large: {size} bytes, and a session holds {self._max_bytes}"
            raise failed(message, ErrorKind.PERMANENT, "too_large")
        turn = asyncio.get_running_loop().create_future()
        self._queue.append((size, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._admit()  # the next request may fit now
            else:
                self._free_room(size)
            raise

    def _admit(self) -> None:
        while self._queue:
            size, turn = self._queue[0]
            if not turn.done():
                if self._count >= self._max_count or self._bytes + size > self._max_bytes:
                    return
                self._count += 1
                self._bytes += size
                turn.set_result(None)
            self._queue.popleft()

    def _free_room(self, size: int) -> None:
        self._count -= 1
        self._bytes -= size
        self._admit()


def outcome_of(message: SessionResult, parts: Sequence[bytes]) -> Outcome:
    """Return the outcome in a gateway's message: a reply, or a `JobFailed`. Raises `BadMessage` if it has neither."""
    if (error := message.error) is not None:
        text, wait_s = storable(error.message or error.code), error.retry_after_s
        return JobFailed(text, kind=ErrorKind(error.kind), code=storable(error.code), retry_after_s=wait_s)
    if message.result is None:
        raise BadMessage("an answer with neither result nor error")
    attached = tuple(zip(message.attachments, parts, strict=True))
    return SessionReply(message.result, attached, message.attempt, message.node_id)


def _call(callback: Callable[..., None], *arguments: object) -> None:
    try:
        callback(*arguments)
    except Exception:
        log.exception("session.callback_failed")
