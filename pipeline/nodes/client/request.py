"""The requests of a session that have no answer yet: bounded in number and bytes, each sent once a connection."""

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
    """An answer. `attempt`: how many nodes were tried; `node_id`: which one answered."""

    result: dict[str, Any]
    attachments: tuple[tuple[Attachment, bytes], ...] = ()
    attempt: int = 1
    node_id: str = ""


class JobFailed(UnitError):
    """The gateway's or a node's word on this job, as against trouble with the connection."""


Outcome = SessionReply | UnitError


def failed(message: str, kind: ErrorKind, code: str, retry_after_s: float | None = None) -> UnitError:
    """An error whose text may come from strangers."""
    return UnitError(storable(message), kind=kind, code=code, retry_after_s=retry_after_s)


@dataclass(frozen=True)
class Bundle:
    """A request as it is sent."""

    request_id: str
    head: bytes
    parts: tuple[bytes, ...]

    @classmethod
    def of(cls, attachments: Sequence[tuple[Attachment, bytes]], timeout_s: float, **fields: Any) -> "Bundle":
        """The request in the protocol's words. Raises `UnitError` if it has none for it."""
        announced = [{**about.model_dump(), "size": len(part)} for about, part in attachments]
        try:
            request = JobRequest.model_validate(
                {**fields, "attachments": announced, "timeout_ms": max(1, round(timeout_s * 1000))}
            )
            head = encode(request).encode()
        except ValidationError as error:
            wrong = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, wrong["loc"]))
            raise failed(f"{where}: {wrong['msg']}", ErrorKind.PERMANENT, "bad_request") from None
        except (PydanticSerializationError, UnicodeEncodeError, ValueError, RecursionError):
            raise failed("the request cannot be sent as JSON", ErrorKind.PERMANENT, "bad_request") from None
        return cls(request.request_id, head, tuple(part for _, part in attachments))

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.head) + sum(map(len, self.parts))


@dataclass(eq=False)
class Pending:
    """A request, and who waits for its answer."""

    bundle: Bundle
    entered: float
    answer: asyncio.Future[Outcome]
    waiters: int = 0
    sends: int = 0
    accepted: bool = False
    """The gateway has said that it knows the request, on this connection."""
    kept: bool = False
    """The job goes on at the gateway though nobody waits: who asks again gets its answer."""
    attempt: int = 1
    on_partial: list[OnPartial] = field(default_factory=list)
    on_sent: list[OnSent] = field(default_factory=list)

    def was_sent(self) -> None:
        """The request was handed to the network; tell those who wait to hear it."""
        self.sends += 1
        tell, self.on_sent = self.on_sent, []
        for callback in tell:
            _tell(callback)

    def piece(self, attempt: int, text: str) -> None:
        """Pass on a piece of the answer, unless an attempt before the present one made it."""
        if attempt >= self.attempt:
            self.attempt = attempt
            for callback in self.on_partial:
                _tell(callback, attempt, text)


class Pendings:
    """All requests without an answer. `most`, `most_bytes`: how many there may be, and how large together."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._known: dict[str, Pending] = {}
        self._bytes = 0
        self._held = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Who waits for room."""
        self._unsent: deque[Pending] = deque()
        self._under_way: set[str] = set()
        self._window = 0
        self._cancels: dict[str, None] = {}
        self._changed = asyncio.Event()

    def __iter__(self) -> Iterator[Pending]:
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    def get(self, request_id: str) -> Pending | None:
        """The request of this id, if it has no answer yet."""
        return self._known.get(request_id)

    async def enter(self, bundle: Bundle, on_partial: OnPartial | None, on_sent: OnSent | None) -> Pending:
        """Wait for room, and become one who waits for the answer; for that of a request that is here already, too."""
        pending = self._known.get(bundle.request_id)
        if pending is None:
            await self._room(bundle.size)
            pending = self._known.get(bundle.request_id)
            if pending is not None:  # somebody else came first
                self._give_back(bundle.size)
            else:
                pending = self._add(bundle)
        pending.waiters += 1
        pending.kept = False
        if on_partial is not None:
            pending.on_partial.append(on_partial)
        if on_sent is not None and pending.sends:
            _tell(on_sent)
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
        """One waits no more. After the last one, the request is forgotten, and cancelled if it was sent."""
        pending.waiters -= 1
        if not pending.waiters and self._forget(pending) and pending.sends and not pending.kept:
            self._cancels[pending.bundle.request_id] = None
            while len(self._cancels) > self._most:  # without a connection for long
                del self._cancels[next(iter(self._cancels))]

    def settle(self, pending: Pending | None, outcome: Outcome) -> None:
        """Give the answer to those who wait for it; harmless for a request that has one."""
        if pending is not None and self._forget(pending):
            pending.answer.set_result(outcome)

    def _forget(self, pending: Pending) -> bool:
        if self._known.get(pending.bundle.request_id) is not pending:
            return False
        del self._known[pending.bundle.request_id]
        self._under_way.discard(pending.bundle.request_id)
        self._changed.set()
        self._give_back(pending.bundle.size)
        return True

    def connected(self, window: int) -> None:
        """There is a new connection, which takes `window` requests at once. Everything is sent again."""
        self._window = window
        self._under_way.clear()
        self._unsent = deque(self._known.values())
        for pending in self._unsent:
            pending.accepted = False
        self._changed.set()

    async def changed(self) -> list[str]:
        """Wait until there may be something to send; the ids of requests to cancel."""
        await self._changed.wait()
        self._changed.clear()
        cancels = list(self._cancels)
        self._cancels.clear()
        return cancels

    def next_unsent(self) -> Pending | None:
        """A request to send on this connection now, if there is one and the gateway takes one more."""
        while self._unsent and len(self._under_way) < self._window:
            pending = self._unsent.popleft()
            if self._known.get(pending.bundle.request_id) is pending:
                self._under_way.add(pending.bundle.request_id)
                return pending
        return None

    def unaccepted(self) -> list[Pending]:
        """Requests that were sent on this connection, and of which the gateway has said nothing."""
        return [pending for pending in self if pending.bundle.request_id in self._under_way and not pending.accepted]

    async def _room(self, size: int) -> None:
        if size > self._most_bytes:
            message = f"the request is too large: {size} bytes, and a session holds {self._most_bytes}"
            raise failed(message, ErrorKind.PERMANENT, "too_large")
        turn = asyncio.get_running_loop().create_future()
        self._queue.append((size, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._admit()  # whoever stood behind it
            else:
                self._give_back(size)
            raise

    def _admit(self) -> None:
        while self._queue:
            size, turn = self._queue[0]
            if not turn.done():
                if self._held >= self._most or self._bytes + size > self._most_bytes:
                    return
                self._held += 1
                self._bytes += size
                turn.set_result(None)
            self._queue.popleft()

    def _give_back(self, size: int) -> None:
        self._held -= 1
        self._bytes -= size
        self._admit()


def outcome_of(message: SessionResult, parts: Sequence[bytes]) -> Outcome:
    """The answer in a gateway's message. Raises `BadMessage` if it holds none."""
    if (error := message.error) is not None:
        said, wait_s = storable(error.message or error.code), error.retry_after_s
        return JobFailed(said, kind=ErrorKind(error.kind), code=storable(error.code), retry_after_s=wait_s)
    if message.result is None:
        raise BadMessage("an answer with neither result nor error")
    attached = tuple(zip(message.attachments, parts, strict=True))
    return SessionReply(message.result, attached, message.attempt, message.node_id)


def _tell(callback: Callable[..., None], *said: object) -> None:
    try:
        callback(*said)
    except Exception:
        log.exception("session.callback_failed")
