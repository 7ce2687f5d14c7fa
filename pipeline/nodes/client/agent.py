"""A node: connects to a gateway, and does its jobs until an operator or a signal ends it.

docs/reference/node-protocol.md describes the protocol. Everything but the jobs themselves runs on one event loop.
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
"""How long a connection must last to reset the back-off."""
_REFUSALS = 3
_UNSENT = 1000
"""While so many messages wait to be sent, the node does not read."""
_TOO_LARGE = JobError(code="too_large", message="the result is larger than the gateway allows", kind="permanent")
_OUR_FAULT = {CloseCode.BAD_MESSAGE, CloseCode.TOO_LARGE, 1009}
_ENDS: dict[int, str] = {
    CloseCode.UNAUTHORIZED: "the gateway {url} does not accept the token: it is unknown, revoked, expired, made for "
    "sessions, or for another node than '{node_id}', or the name '{node_id}' belongs to another token. There, "
    "`penstock nodes tokens` lists and makes them, and `penstock nodes free {node_id}` frees the name",
    CloseCode.VERSION: "the gateway {url} speaks none of this node's versions of the protocol: update the older one",
    CloseCode.REPLACED: "another process has registered as node '{node_id}': give each its own id with --id",
}


class NodeRefused(UserError):
    """The gateway refuses this node, and would refuse a retry. `code`: `unauthorized`, `version` or `replaced`."""


@dataclass(frozen=True)
class AgentOptions:
    """The node's identity, and the gateways that it connects to: `urls` in turn, the next after each failure."""

    urls: tuple[str, ...]
    token: str = field(repr=False)
    node_id: str
    name: str = ""
    slots: int = 1
    software: str = ""
    grace_s: float = 60
    """How long running jobs may take after `drain`."""
    limits: LinkLimits = field(default_factory=LinkLimits)
    trust: ssl.SSLContext | None = None
    """The trusted authorities for `wss://`. None: those of the system."""


class Agent:
    """One node. Call `run` on an event loop, and `drain` or `stop` on the same loop to end it.

    `report` gets a sentence at each registration, at each new reason for a lost connection, and at the end.
    """

    def __init__(
        self,
        options: AgentOptions,
        executor: Executor,
        report: Callable[[str], None] = lambda _: None,
        *,
        results: Results | None = None,
        back_off: BackOff | None = None,
    ) -> None:
        self.bench = Bench(executor, options.slots, self._check, results)
        self._options = options
        self._offers = executor.offers
        self._report = report
        self._back_off = back_off or BackOff(0.5, 30)
        self._ended = asyncio.Event()
        self._outbox: Outbox | None = None
        self._reported: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Connect, register and serve jobs until `drain` has completed or `stop` is called; connect again after each
        lost connection. Raises `NodeRefused`."""
        connecting = asyncio.create_task(self._connect())
        ending = asyncio.create_task(self._ended.wait())
        try:
            await asyncio.wait({connecting, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(connecting, ending)  # closes the connection
        if not connecting.cancelled():
            connecting.result()

    def drain(self, why: str) -> None:
        """Take no new jobs; `run` ends once the running jobs are finished and the gateway has their results, or after
        `grace_s`. Returns at once; harmless if repeated. `why` is reported."""
        if self.bench.closed:
            return
        self.bench.closed = True
        self._report(f"Ending ({why}): {_count(self.bench.wanted, 'job')} in progress.")
        if self._outbox is not None:
            self._outbox.put_nowait(NodeDrain())
        asyncio.get_running_loop().call_later(self._options.grace_s, self._grace_over)
        self._check()

    def stop(self) -> None:
        """Make `run` end now. Running jobs and unsent results are lost; the gateway gives these jobs to other nodes."""
        self._ended.set()

    def _grace_over(self) -> None:
        if not self._ended.is_set():
            unfinished = f"{_count(self.bench.wanted, 'job')} and {_count(len(self.bench.results), 'result')}"
            self._report(f"The grace period is over: {unfinished} left behind.")
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
                self._report_loss(url, f"the gateway breaks the protocol: {error}")
                self._back_off.failures += 8
            except LinkFailed as error:
                self._report_loss(url, str(error), error.close_code)
            await asyncio.sleep(self._back_off.next_s())

    def _report_loss(self, url: str, reason: str, close_code: int = 0) -> None:
        """Report a lost connection, once for each reason. Raises `NodeRefused` if a retry would fail as well."""
        if sentence := _ENDS.get(close_code):
            code = CloseCode(close_code).name.lower()
            message = sentence.format(url=url, node_id=self._options.node_id)
            raise NodeRefused(f"{message} ({reason})", code=code)
        if close_code in _OUR_FAULT:
            self._back_off.failures += 8
        if (url, reason) not in self._reported:
            self._reported.add((url, reason))
            self._report(f"No connection to {url}: {reason}. Trying again.")

    async def _serve(self, link: Link[ToNode], url: str) -> None:
        """Register, and serve jobs on one connection until it fails. Raises `LinkFailed` and `BadMessage`."""
        welcome = await self._register(link)
        self._reported.clear()
        self._report(f"Registered at {url} ({welcome.instance_id}) as {self._options.node_id}: {self._offered()}.")
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

    async def _register(self, link: Link[ToNode]) -> NodeWelcome:
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
                        raise BadMessage("the first message must be a welcome")
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
                    self.drain("requested by the gateway's operator")
                case Error():
                    log.warning("node.gateway_error", code=message.code[:64], message=message.message[:300])
            if outbox.qsize() > _UNSENT:
                await outbox.join()

    async def _write(
        self, link: Link[ToNode], outbox: Outbox, welcome: NodeWelcome, sent: set[tuple[str, int]]
    ) -> None:
        while True:
            item = await outbox.get()
            if isinstance(item, tuple):
                finished = self._limited(self.bench.results.get(item), welcome)
                if finished is not None:  # None: the job was cancelled
                    sent.add(item)
                    await link.send(finished.head, finished.parts)
            elif isinstance(item, Finished):
                await link.send(item.head, item.parts)
            else:
                await link.send(item)
            outbox.task_done()

    def _limited(self, finished: Finished | None, welcome: NodeWelcome) -> Finished | None:
        """Return the result; if it is larger than this gateway allows, keep an error in its place and return that."""
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
        # Any message is a sign of life, so a heartbeat is needed only if no other message waits.
        if outbox.empty():
            outbox.put_nowait(NodeHeartbeat())


async def _first_of(*routines: Coroutine[Any, Any, Any]) -> None:
    """Run the coroutines until the first ends, and cancel the others. Raises the error of the first."""
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
