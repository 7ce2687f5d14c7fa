"""A session with a gateway, which sends requests and receives their answers.

One connection carries all requests. If it breaks, the session connects to the next address under the same session id,
and resends every unanswered request under its request id, which the gateway recognizes as the same job.
"""

import asyncio
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import structlog

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.nodes.client.link import BackOff, Link, LinkFailed, LinkLimits, Oversize, endpoints, open_link
from pipeline.nodes.client.request import Bundle, Pending, Pendings, SessionReply, failed, outcome_of
from pipeline.nodes.protocol import (
    SESSION_PATH,
    Attachment,
    BadMessage,
    CloseCode,
    Error,
    JobAccepted,
    SessionCancel,
    SessionOpen,
    SessionPartial,
    SessionResult,
    SessionWelcome,
    ToSession,
    to_session,
)

Reply = TypeVar("Reply")
log = structlog.get_logger(__name__)
_POISON = {CloseCode.BAD_MESSAGE, CloseCode.TOO_LARGE}
_ADVICE = "make one with `penstock nodes tokens create NAME --kind session`"


@dataclass(frozen=True)
class SessionLimits(LinkLimits):
    """Size and time limits of a session."""

    max_requests: int = 256
    """The most unanswered requests. Further ones wait for room."""
    max_bytes: int = 64 * 2**20
    """The most bytes of all unanswered requests. A gateway takes as many of a session (its `max_outbox_bytes`)."""
    patience_s: float = 30
    """How long a request waits while no gateway answers, unless its own limit is shorter."""
    max_sends: int = 20
    """How often the session sends a request, which ends requests that break every connection."""
    back_off_s: tuple[float, float] = (0.2, 10)
    """The longest wait before the first reconnection, and before any."""


class Session:
    """Sends requests to a gateway. An async context manager, for one event loop of one process.

    `urls`: the gateways' addresses, `ws://` or `wss://`, as a list or separated by commas. Raises `ValueError` for
    an unusable address.
    """

    def __init__(
        self, urls: str | Sequence[str], token: str, *, name: str = "", limits: SessionLimits | None = None
    ) -> None:
        self._urls = endpoints(urls, SESSION_PATH)
        self._token = token.strip()
        self._name = name
        self._limits = limits or SessionLimits()
        self._session_id = secrets.token_hex(16)
        self._pendings = Pendings(self._limits.max_requests, self._limits.max_bytes)
        self._back_off = BackOff(*self._limits.back_off_s)
        self._wanted = asyncio.Event()
        """Set while a request or a call of `connected` needs a connection."""
        self._opened: asyncio.Future[SessionWelcome | UnitError] | None = None
        self._down_since: float | None = None
        self._failure_reason = "the session has not tried to connect yet"
        self._link: Link[ToSession] | None = None
        self.welcome: SessionWelcome | None = None
        """The gateway's welcome. None while there is no connection."""
        self._pid = os.getpid()
        self._running: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. Unanswered requests fail with the transient code `closed`; the session cannot be used
        again."""
        self._closed = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self._fail_all(failed("the session was closed", ErrorKind.TRANSIENT, "closed"))

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    async def connected(self, timeout_s: float = 10) -> SessionWelcome:
        """Wait up to `timeout_s` for a connection, opening one if necessary, and return the gateway's welcome. Raises
        `UnitError`, or `RuntimeError` in a session that is closed or belongs to another process."""
        self._start()
        if self.welcome is not None:
            return self.welcome
        if self._opened is None or self._opened.done():
            self._opened = asyncio.get_running_loop().create_future()
        self._wanted.set()
        try:
            async with asyncio.timeout(timeout_s):
                return _answered(await asyncio.shield(self._opened))
        except TimeoutError:
            raise self._unreachable() from None

    async def request(
        self,
        capability: str,
        model: str = "",
        body: dict[str, Any] | None = None,
        attachments: Sequence[tuple[Attachment, bytes]] = (),
        *,
        timeout_s: float = 120,
        request_id: str = "",
        if_no_node: Literal["wait", "error"] = "wait",
        on_partial: Callable[[int, str], None] | None = None,
        on_sent: Callable[[], None] | None = None,
    ) -> SessionReply:
        """Send a request, and return its answer within `timeout_s`, which includes waiting for room and a connection.
        Raises `UnitError`; `JobFailed` if the gateway or a node answered with an error; `RuntimeError` in a session
        that is closed or belongs to another process.

        A repeated `request_id` names the same job, even from another process; if it is empty, the request gets a new
        id. Cancelling the call cancels the job, as does its timeout while there is a connection, unless another
        call of this session waits for the same request. With `if_no_node="error"`, the job fails at once if no
        connected node offers the capability and model. `on_partial` gets the number of the attempt and a piece of the
        text; a new attempt voids earlier pieces, and pieces sent while the connection was lost are missing. `on_sent`
        is called when the request is first handed to the network. Neither callback may block.
        """
        self._start()
        bundle = Bundle.of(
            attachments,
            timeout_s,
            capability=capability,
            model=model,
            body=body or {},
            if_no_node=if_no_node,
            request_id=request_id or secrets.token_hex(16),
            partials=on_partial is not None,
        )
        pending: Pending | None = None
        try:
            async with asyncio.timeout(timeout_s):
                pending = await self._pendings.enter(bundle, on_partial, on_sent)
                self._wanted.set()
                return _answered(await asyncio.shield(pending.answer))
        except TimeoutError:
            if self._link is None:
                # Do not cancel the job: its result may have cost money, and a repeated request gets it.
                raise self._unreachable(pending) from None
            message = f"no answer within {timeout_s:g} s: `penstock nodes list` shows which nodes offer {capability}"
            raise failed(message, ErrorKind.TRANSIENT, "timeout") from None
        finally:
            if pending is not None:
                self._pendings.leave(pending)

    def _start(self) -> None:
        """Start the connecting task unless it runs. Raises `RuntimeError` for a closed or forked session, `UnitError`
        for an unusable token."""
        if self._closed or self._pid != os.getpid():
            raise RuntimeError("a session belongs to the process that created it, until it is closed")
        if not (self._token and self._token.isascii() and self._token.isprintable()):
            problem = "has no token" if not self._token else "cannot use this token, which has odd characters"
            raise failed(f"the session {problem}: {_ADVICE}", ErrorKind.PERMANENT, "auth")
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._keep_connected())

    async def _keep_connected(self) -> None:
        """Connect while requests wait for an answer or `connected` waits. Tries the addresses in turn, from a random
        one on. Runs until cancelled."""
        loop = asyncio.get_running_loop()
        # Start at a random address, to spread processes over the gateways.
        turn = secrets.randbelow(len(self._urls))
        while True:
            await self._wanted.wait()
            self._down_since = loop.time() if self._down_since is None else self._down_since
            try:
                async with open_link(self._urls[turn % len(self._urls)], self._token, to_session, self._limits) as link:
                    await self._serve(link)
            except (LinkFailed, BadMessage) as error:
                self._lost(error, loop.time())
            except Exception as error:
                log.exception("session.unexpected_error")
                self._lost(LinkFailed(f"unexpected {type(error).__name__}"), loop.time())
            turn += 1
            if not self._pendings and (self._opened is None or self._opened.done()):
                self._wanted.clear()
                self._down_since = None
            await asyncio.sleep(self._back_off.next_s())

    async def _serve(self, link: Link[ToSession]) -> None:
        """Open the session on this connection, then send and receive until the connection fails. Always raises."""
        await link.send(SessionOpen(session_id=self._session_id, name=self._name))
        try:
            async with asyncio.timeout(self._limits.open_s):
                welcome, _ = await link.receive()
        except TimeoutError:
            raise LinkFailed("the gateway did not welcome the session") from None
        if not isinstance(welcome, SessionWelcome):
            raise BadMessage("the first message must be a welcome")
        self.welcome, self._link, self._down_since = welcome, link, None
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(welcome)
        self._pendings.connected(min(welcome.max_jobs, self._limits.max_requests))
        work = [asyncio.create_task(self._write(link, welcome)), asyncio.create_task(self._read(link))]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()
        finally:
            self.welcome = self._link = None
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def _write(self, link: Link[ToSession], welcome: SessionWelcome) -> None:
        while True:
            for request_id in await self._pendings.changed():
                await link.send(SessionCancel(request_id=request_id))
            while (pending := self._pendings.next_unsent()) is not None:
                if problem := self._refusal(pending, welcome):
                    self._pendings.settle(pending, problem)
                    continue
                await link.send(pending.bundle.head, pending.bundle.parts)
                pending.was_sent()

    def _refusal(self, pending: Pending, welcome: SessionWelcome) -> UnitError | None:
        """Return the error for a request that this connection cannot carry, or None: it is too large, or was sent too
        often."""
        head, parts = len(pending.bundle.head), sum(map(len, pending.bundle.parts))
        if head > welcome.max_message_bytes or parts > welcome.max_attachment_bytes:
            message = (
                f"the request is too large: {head} bytes with {parts} bytes attached, and the gateway takes "
                f"{welcome.max_message_bytes} with {welcome.max_attachment_bytes}"
            )
            return failed(message, ErrorKind.PERMANENT, "too_large")
        if pending.sends >= self._limits.max_sends:
            message = f"the request lost its connection {pending.sends} times"
            return failed(message, ErrorKind.TRANSIENT, "gateway_unreachable")
        return None

    async def _read(self, link: Link[ToSession]) -> None:
        while True:
            try:
                message, parts = await link.receive()
            except Oversize as error:
                if isinstance(error.message, SessionResult):
                    problem = failed(f"the answer is too large: {error}", ErrorKind.PERMANENT, "too_large")
                    self._pendings.settle(self._pendings.get(error.message.request_id), problem)
                raise
            self._take(message, parts)

    def _take(self, message: ToSession, parts: tuple[bytes, ...]) -> None:
        if isinstance(message, SessionWelcome | Error):
            raise BadMessage("a second welcome")
        self._back_off.reset()
        pending = self._pendings.get(message.request_id)
        if pending is None:
            return  # its waiters have left
        pending.accepted = True
        if isinstance(message, SessionPartial):
            pending.piece(message.attempt, message.text)
        elif isinstance(message, SessionResult):
            self._pendings.settle(pending, outcome_of(message, parts))
        else:
            assert isinstance(message, JobAccepted)

    def _lost(self, error: LinkFailed | BadMessage, now: float) -> None:
        """Note why the connection failed, and fail the requests that this error concerns or that have waited too long.
        `now`: the event loop's time."""
        self._failure_reason = str(error)
        log.info("session.disconnected", reason=self._failure_reason, waiting=len(self._pendings))
        code = error.close_code
        if isinstance(error, LinkFailed) and error.fatal:
            message = f"the gateway refuses the token ({error}): {_ADVICE}"
            if code != CloseCode.UNAUTHORIZED:
                message = f"gateway and session have no version of the protocol in common: {error}"
            name = "auth" if code == CloseCode.UNAUTHORIZED else "version"
            self._fail_all(failed(message, ErrorKind.PERMANENT, name))
        elif code == CloseCode.REPLACED:
            self._session_id = secrets.token_hex(16)  # another session has the id; jobs go by their request ids
        elif isinstance(error, LinkFailed) and code in _POISON:
            # An unaccepted request caused the close code, so fail these, and resend the others.
            for pending in self._pendings.unaccepted():
                self._pendings.settle(pending, failed(f"refused: {error}", ErrorKind.TRANSIENT, "refused"))
        self._down_since = now if self._down_since is None else self._down_since
        for pending in list(self._pendings):
            if now - max(self._down_since, pending.entered) >= self._limits.patience_s:
                self._pendings.settle(pending, self._unreachable(pending))
        if self._opened is not None and not self._opened.done() and now - self._down_since >= self._limits.patience_s:
            self._opened.set_result(self._unreachable())

    def _fail_all(self, error: UnitError) -> None:
        for pending in list(self._pendings):
            self._pendings.settle(pending, error)
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(error)

    def _unreachable(self, pending: Pending | None = None) -> UnitError:
        if pending is not None:
            pending.kept = True
        addresses = ", ".join(self._urls)
        return failed(f"no gateway at {addresses}: {self._failure_reason}", ErrorKind.TRANSIENT, "gateway_unreachable")


def _answered(outcome: Reply | UnitError) -> Reply:
    if isinstance(outcome, UnitError):
        raise outcome
    return outcome


def ask(urls: str | Sequence[str], token: str, capability: str, **request: Any) -> SessionReply:
    """Send one request over a session of its own, outside of asyncio, and return the answer.

    `request`: further arguments of `Session.request`. Raises `UnitError`; `JobFailed` if the gateway or a node answered
    with an error.
    """

    async def once() -> SessionReply:
        async with Session(urls, token) as session:
            return await session.request(capability, **request)

    return asyncio.run(once())
