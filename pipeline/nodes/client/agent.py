"""A node: it connects outwards to a gateway, does the jobs that it is given, and stays until it is asked to end.

docs/how-to/nodes.md says what goes over the wire. Everything but the jobs themselves happens on one event loop.
"""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import structlog

from pipeline.engine.errors import UserError
from pipeline.nodes.client.bench import Bench, Outbox, Results
from pipeline.nodes.client.executor import Executor, Finished, failed
from pipeline.nodes.client.link import BackOff, Link, LinkFailed, LinkLimits, open_link
from pipeline.nodes.protocol import (
    BadMessage,
    CloseCode,
    Drain,
    Error,
    JobAssign,
    JobError,
    NodeCancel,
    NodeDrain,
    NodeHeartbeat,
    NodeRegister,
    NodeResultReceived,
    NodeWelcome,
    ToNode,
    to_node,
)

log = structlog.get_logger(__name__)

_STEADY_S = 10
"""A connection that lasts so long is a good one: the next wait begins from the start."""
_REFUSALS = 3
_UNSAID = 1000
"""So many messages that wait to be sent, and the node reads no more."""
_TOO_LARGE = JobError(code="too_large", message="the result is larger than the gateway takes", kind="permanent")
_OUR_FAULT = {CloseCode.BAD_MESSAGE, CloseCode.TOO_LARGE, 1009}
_ENDS: dict[int, str] = {
    CloseCode.UNAUTHORIZED: "the gateway {url} does not accept the token: it is unknown, revoked, expired, made for "
    "sessions, or for another node than '{node_id}', or the name '{node_id}' belongs to another token. There, "
    "`penstock nodes tokens` lists and makes them, and `penstock nodes free {node_id}` frees the name",
    CloseCode.VERSION: "the gateway {url} speaks none of this node's versions of the protocol: update the older one",
    CloseCode.REPLACED: "another process has registered as node '{node_id}': give each its own id with --id",
}


class NodeRefused(UserError):
    """The gateway does not want this node, and will not if it tries again. `code`: `unauthorized`, `version` or
    `replaced`."""


@dataclass(frozen=True)
class AgentOptions:
    """Who the node is, and where it connects to: to `urls` in turn, the next after each failure."""

    urls: tuple[str, ...]
    token: str = field(repr=False)
    node_id: str
    name: str = ""
    slots: int = 1
    software: str = ""
    grace_s: float = 60
    """How long jobs that are under way may take once the node was asked to end."""
    limits: LinkLimits = field(default_factory=LinkLimits)
    trust: ssl.SSLContext | None = None
    """For `wss://`; None: the authorities that the system trusts."""


class Agent:
    """One node. `tell` gets a sentence at each registration and each loss of the connection.

    Make one, call `run` on an event loop, and there, if it shall end, `drain` or `stop`."""

    def __init__(
        self,
        options: AgentOptions,
        executor: Executor,
        tell: Callable[[str], None] = lambda _: None,
        *,
        results: Results | None = None,
        back_off: BackOff | None = None,
    ) -> None:
        self.bench = Bench(executor, options.slots, self._check, results)
        self._options = options
        self._offers = executor.offers
        self._tell = tell
        self._back_off = back_off or BackOff(0.5, 30)
        self._ended = asyncio.Event()
        self._outbox: Outbox | None = None
        self._told: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Be a node until `drain` is through or `stop` is called. Raises `NodeRefused`."""
        connecting = asyncio.create_task(self._connect())
        ending = asyncio.create_task(self._ended.wait())
        try:
            await asyncio.wait({connecting, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(connecting, ending)  # with a word to the gateway
        if not connecting.cancelled():
            connecting.result()

    def drain(self, why: str) -> None:
        """Take no more jobs, finish those under way within the grace, then end. Harmless if repeated."""
        if self.bench.closed:
            return
        self.bench.closed = True
        self._tell(f"Ending ({why}): {_count(self.bench.wanted, 'job')} under way.")
        if self._outbox is not None:
            self._outbox.put_nowait(NodeDrain())
        asyncio.get_running_loop().call_later(self._options.grace_s, self._grace_over)
        self._check()

    def stop(self) -> None:
        """End now. The gateway gives what is under way to other nodes."""
        self._ended.set()

    def _grace_over(self) -> None:
        if not self._ended.is_set():
            left = f"{_count(self.bench.wanted, 'job')} and {_count(len(self.bench.results), 'result')}"
            self._tell(f"The time is over: left {left}.")
            self._ended.set()

    def _check(self) -> None:
        if self.bench.closed and self.bench.idle:
            self._ended.set()

    async def _connect(self) -> None:
        for url in cycle(self._options.urls):
            try:
                async with open_link(
                    url, self._options.token, to_node, self._options.limits, self._options.trust
                ) as link:
                    await self._serve(link, url)
            except BadMessage as error:
                self._lost(url, f"what it sends is not the protocol: {error}")
                self._back_off.failures += 8
            except LinkFailed as error:
                self._lost(url, str(error), error.close_code)
            await asyncio.sleep(self._back_off.next_s())

    def _lost(self, url: str, reason: str, close_code: int = 0) -> None:
        """Say so, once for each reason. Raises `NodeRefused` where trying again is no use."""
        if sentence := _ENDS.get(close_code):
            code = CloseCode(close_code).name.lower()
            said = sentence.format(url=url, node_id=self._options.node_id)
            raise NodeRefused(f"{said} ({reason})", code=code)
        if close_code in _OUR_FAULT:
            self._back_off.failures += 8
        if (url, reason) not in self._told:
            self._told.add((url, reason))
            self._tell(f"No connection to {url}: {reason}. Trying again.")

    async def _serve(self, link: Link[ToNode], url: str) -> None:
        """Be a node on one connection. Raises `LinkFailed` and `BadMessage`."""
        welcome = await self._registered(link)
        self._told.clear()
        self._tell(f"Registered at {url} ({welcome.instance_id}) as {self._options.node_id}: {self._offered()}.")
        outbox = self._outbox = Outbox()
        self.bench.connect(outbox)
        if self.bench.closed:
            outbox.put_nowait(NodeDrain())
        steady = asyncio.get_running_loop().call_later(_STEADY_S, self._back_off.reset)
        sent: set[tuple[str, int]] = set()
        try:
            await _first_of(
                self._read(link, outbox), self._write(link, outbox, welcome, sent), _heartbeats(outbox, welcome)
            )
        except LinkFailed as error:
            if error.close_code in _OUR_FAULT:
                for key in sent:
                    self.bench.results.refuse(key, _REFUSALS)
            raise
        finally:
            steady.cancel()
            self._outbox = None
            self.bench.disconnect()

    async def _registered(self, link: Link[ToNode]) -> NodeWelcome:
        options = self._options
        await link.send(
            NodeRegister(
                node_id=options.node_id,
                name=options.name,
                slots=options.slots,
                offers=self._offers,
                software=options.software,
                held=self.bench.held(),
            )
        )
        try:
            async with asyncio.timeout(options.limits.open_s):
                while True:
                    message, _ = await link.receive()
                    if isinstance(message, NodeWelcome):
                        return message
                    if not isinstance(message, Error):
                        raise BadMessage("the first message is a welcome")
                    log.warning("node.gateway_error", code=message.code[:64], message=message.message[:300])
        except TimeoutError:
            raise LinkFailed("the gateway did not welcome the node in time") from None

    async def _read(self, link: Link[ToNode], outbox: Outbox) -> None:
        while True:
            message, parts = await link.receive()
            match message:
                case JobAssign():
                    self.bench.take(message, parts)
                case NodeCancel():
                    self.bench.cancel((message.job_id, message.attempt))
                case NodeResultReceived():
                    self.bench.received((message.job_id, message.attempt), taken=message.taken)
                case Drain():
                    self.drain("asked by the gateway's operator")
                case Error():
                    log.warning("node.gateway_error", code=message.code[:64], message=message.message[:300])
            if outbox.qsize() > _UNSAID:
                await outbox.join()

    async def _write(
        self, link: Link[ToNode], outbox: Outbox, welcome: NodeWelcome, sent: set[tuple[str, int]]
    ) -> None:
        while True:
            what = await outbox.get()
            if isinstance(what, tuple):
                finished = self._fitting(self.bench.results.get(what), welcome)
                if finished is not None:  # it may have been cancelled meanwhile
                    sent.add(what)
                    await link.send(finished.head, finished.parts)
            elif isinstance(what, Finished):
                await link.send(what.head, what.parts)
            else:
                await link.send(what)
            outbox.task_done()

    def _fitting(self, finished: Finished | None, welcome: NodeWelcome) -> Finished | None:
        """The result, or in its place an error if it is larger than this gateway takes."""
        if finished is None or (
            len(finished.head) <= welcome.max_message_bytes
            and finished.attachment_bytes <= welcome.max_attachment_bytes
        ):
            return finished
        finished = failed(finished.key, _TOO_LARGE)
        self.bench.results.keep(finished)
        return finished

    def _offered(self) -> str:
        offers = "; ".join(f"{offer.capability} ({', '.join(offer.models)})" for offer in self._offers)
        return f"{_count(self._options.slots, 'slot')}, {offers}"


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun if number <= 1 else f'{noun}s'}"


async def _heartbeats(outbox: Outbox, welcome: NodeWelcome) -> None:
    while True:
        await asyncio.sleep(min(max(welcome.heartbeat_ms, 50), 60_000) / 1000)
        # Where other messages wait to be sent, those say that the node is there.
        if outbox.empty():
            outbox.put_nowait(NodeHeartbeat())


async def _first_of(*routines: Coroutine[Any, Any, Any]) -> None:
    """Until the first of them ends; the others are cancelled. Raises what it raised."""
    tasks = [asyncio.create_task(routine) for routine in routines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _end(*tasks)
    for task in tasks:
        if task in done:
            task.result()


async def _end(*tasks: "asyncio.Task[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
