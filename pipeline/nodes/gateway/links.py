"""Who is connected here: nodes and sessions, what each was told, and where those of other instances are."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pipeline.nodes.gateway.background import Spawn
from pipeline.nodes.gateway.connection import Connection
from pipeline.nodes.gateway.view import View
from pipeline.nodes.protocol import (
    CloseCode,
    Drain,
    JobAck,
    JobAssign,
    JobError,
    JobRequest,
    JobStarted,
    NodeCancel,
    NodePartial,
    NodeResult,
    SessionPartial,
    SessionResult,
)
from pipeline.nodes.state.inbox import Inbox
from pipeline.nodes.state.instances import Owners
from pipeline.nodes.state.snapshots import NodeState

_SMOOTHING = 0.2
"""How much the latest latency counts in the average."""
_STEPS = ("job_ack", "job_started", "job_partial")


class Link:
    """A connection that is registered, or about to be."""

    def __init__(self, name: str, token_id: str, connection: Connection) -> None:
        self.id = name
        self.token_id = token_id
        self.connection = connection
        self.owned = False
        """Whether Redis knows that it is connected to this instance."""

    def close(self, code: CloseCode, reason: str) -> None:
        self.connection.close(code, reason)


@dataclass(frozen=True, eq=False)
class JobInHand:
    """An attempt that a node has."""

    attempt: int
    capability: str
    model: str
    since: float


class NodeLink(Link):
    """A node's connection, its jobs, and how it does."""

    def __init__(self, connection: Connection, state: NodeState, nodes: "Mapping[str, NodeLink]", view: View) -> None:
        super().__init__(state.node_id, state.token_id, connection)
        self.state = state
        self._nodes, self._view = nodes, view
        self.jobs: dict[str, JobInHand] = {}
        self._told: set[tuple[str, int, str]] = set()
        """Which steps of its jobs it has told: each is written once, however often it is said."""
        self.lost: set[tuple[str, int]] = set()
        """Attempts that it had lost when it connected, and others have by now: they may still be on their way here."""
        self.settling: set[tuple[str, int]] = set()
        """Attempts whose results are being stored."""
        self.forgiven = 0.0
        """When its drops were last forgiven."""

    def assign(self, message: JobAssign, parts: Sequence[bytes]) -> None:
        """Give it a job; one that it has in this attempt already is not given again."""
        if not self.has(message) and (message.job_id, message.attempt) not in self.lost:
            self.hold(message.job_id, message.attempt, message.capability, message.model)
            self.show()
            self.connection.send(message, parts)

    def hold(self, job_id: str, attempt: int, capability: str, model: str) -> None:
        """It has this attempt from now on."""
        self.jobs[job_id] = JobInHand(attempt, capability, model, time.monotonic())

    def cancel(self, message: NodeCancel) -> None:
        """End an attempt, and those before it."""
        job = self.jobs.get(message.job_id)
        if job and job.attempt <= message.attempt:
            self.forget(message.job_id)
            message = message.model_copy(update={"attempt": job.attempt})
        self.connection.send(message)

    def drain(self, reason: str) -> None:
        """It gets no more jobs, and is asked to finish and go."""
        self.show(draining=True)
        self.connection.send(Drain(reason=reason))

    def has(self, message: JobAssign | JobAck | JobStarted | NodePartial | NodeResult) -> bool:
        """Whether it has this job, in this attempt."""
        job = self.jobs.get(message.job_id)
        return job is not None and job.attempt == message.attempt

    def tells(self, message: JobAck | JobStarted | NodePartial) -> bool:
        """Whether it says so for the first time, of a job that it has."""
        key = (message.job_id, message.attempt, message.type)
        if not self.has(message) or key in self._told:
            return False
        self._told.add(key)
        return True

    def forget(self, job_id: str, attempt: int | None = None) -> JobInHand | None:
        """It does not have the job any more: what it had, if that was this attempt."""
        job = self.jobs.get(job_id)
        if job is None or attempt not in (None, job.attempt):
            return None
        del self.jobs[job_id]
        self._told -= {(job_id, job.attempt, step) for step in _STEPS}
        self.show()
        return job

    def measure(self, job: JobInHand) -> None:
        """It has done this job: how long that took counts."""
        took_ms, latency_ms = (time.monotonic() - job.since) * 1000, self.state.latency_ms
        before = latency_ms.get(job.capability, took_ms)
        average = before + _SMOOTHING * (took_ms - before)
        self.state = replace(self.state, latency_ms={**latency_ms, job.capability: average})

    def show(self, **facts: Any) -> None:
        """Show what has changed to those who look for a node."""
        self.state = replace(self.state, used=len(self.jobs), **facts)
        if self._nodes.get(self.id) is self:
            self._view.put(self.state)


class SessionLink(Link):
    """A session's connection and the requests that it waits for."""

    def __init__(self, name: str, token_id: str, connection: Connection) -> None:
        super().__init__(name, token_id, connection)
        self.requests: dict[str, str] = {}
        """Request → job; empty while it is not known."""
        self.unwanted: set[str] = set()
        """Requests that it has cancelled while their jobs were not known."""
        self._wants_partials: set[str] = set()
        self._sizes: dict[str, int] = {}

    def enter(self, request: JobRequest, size: int) -> None:
        """It waits for this."""
        self.requests[request.request_id] = ""
        self._sizes[request.request_id] = size
        self.unwanted.discard(request.request_id)
        if request.partials:
            self._wants_partials.add(request.request_id)

    @property
    def waiting_bytes(self) -> int:
        """Of all requests that it waits for."""
        return sum(self._sizes.values())

    def waits_for(self, job_id: str) -> bool:
        return job_id in self.requests.values()

    def answer(self, result: SessionResult, parts: Sequence[bytes] = ()) -> None:
        """Answer a request, once."""
        if result.request_id in self.requests:
            self.forget(result.request_id)
            self.connection.send(result, parts)

    def refuse(self, request_id: str, error: JobError) -> None:
        """Answer a request that it does not come to wait for."""
        self.connection.send(SessionResult(request_id=request_id, error=error))

    def fail(self, request_id: str, error: JobError, job_id: str = "") -> None:
        """Answer a request with an error."""
        self.answer(SessionResult(request_id=request_id, job_id=job_id, error=error))

    def partial(self, message: SessionPartial) -> None:
        """Pass a piece on, unless the session does not want it or does not keep up."""
        if message.request_id in self._wants_partials:
            self.connection.send(message, dispensable=True)

    def forget(self, request_id: str) -> None:
        """It does not wait for this any more."""
        self.requests.pop(request_id, None)
        self._sizes.pop(request_id, None)
        self._wants_partials.discard(request_id)
        self.unwanted.discard(request_id)


AnyLink = TypeVar("AnyLink", bound=Link)


class Links(dict[str, AnyLink]):
    """The links of one kind to this instance, by id, and the owners of those that are connected to others."""

    def __init__(
        self,
        noun: str,
        owners: Owners,
        inbox: Inbox,
        instance_id: str,
        spawn: Spawn,
        gone: Callable[[str], Awaitable[object]] | None = None,
    ) -> None:
        """`gone`: called for one that has left this instance for none."""
        super().__init__()
        self._noun = noun
        self._owners = owners
        self._inbox = inbox
        self._instance_id = instance_id
        self._spawn = spawn
        self._gone = gone

    async def elsewhere(self, name: str, dead: str = "") -> str:
        """The other instance that it is connected to; empty: none that is known. `dead` does not count."""
        owner = await self._owners.owner(name)
        return "" if owner in {self._instance_id, dead} else owner

    @asynccontextmanager
    async def connected(self, link: AnyLink) -> AsyncIterator[None]:
        """The link is here within the block. Whoever had the same node or session before closes it."""
        if before := self.get(link.id):
            before.close(CloseCode.REPLACED, f"the {self._noun} has connected anew")
        self[link.id] = link
        try:
            owner = await self._owners.take(link.id, self._instance_id)
            link.owned = True
            if owner and owner != self._instance_id:
                await self._inbox.send(owner, "kick", {f"{self._noun}_id": link.id})
            yield
        finally:
            if self.get(link.id) is link:
                del self[link.id]
                self._spawn(self._leave(link.id))

    async def _leave(self, name: str) -> None:
        """Unless it has come back meanwhile, here or elsewhere, it is nobody's."""
        if self._gone and await self._owners.owner(name) == self._instance_id and name not in self:
            await self._gone(name)
        if name not in self:
            await self._owners.drop(name, self._instance_id)
            if name in self:  # it came back meanwhile
                await self._owners.take(name, self._instance_id)

    async def drop_all(self) -> None:
        """The instance ends: nothing is connected to it."""
        for name in list(self):
            await self._owners.drop(name, self._instance_id)

    async def renew(self) -> None:
        """Prolong what is connected here, and close what is another instance's by now.

        Skip links that are still registering: they claim their names later.
        """
        owned = {name: link for name, link in self.items() if link.owned}
        for name in await self._owners.renew(self._instance_id, owned):
            owned[name].close(CloseCode.REPLACED, "it is connected to another instance")

    async def kick(self, name: str) -> None:
        """Close what has connected elsewhere: not if it is here again, or if an instance that died was told so.

        A link that is still registering claims its name after this message; leave it alone.
        """
        link = self.get(name)
        if link and link.owned and await self._owners.owner(name) != self._instance_id:
            link.close(CloseCode.REPLACED, "it is connected to another instance")

    def close_all(self, code: CloseCode, reason: str, token_id: str = "") -> None:
        """Close all links, or those with this token."""
        for link in self.values():
            if token_id in {"", link.token_id}:
                link.close(code, reason)
