"""Links: the local connections of nodes and sessions with their jobs and requests, and the owners of all others."""

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
"""The weight of the latest latency in the moving average."""
_STEPS = ("job_ack", "job_started", "job_partial")


class Link:
    """A connection that is registered or registering."""

    def __init__(self, name: str, token_id: str, connection: Connection) -> None:
        self.id = name
        self.token_id = token_id
        self.connection = connection
        self.owned = False
        """Redis records this instance as the owner."""

    def close(self, code: CloseCode, reason: str) -> None:
        self.connection.close(code, reason)


@dataclass(frozen=True, eq=False)
class HeldAttempt:
    """An attempt that a node holds."""

    attempt: int
    capability: str
    model: str
    since: float


class NodeLink(Link):
    """A node's connection, state and jobs."""

    def __init__(self, connection: Connection, state: NodeState, nodes: "Mapping[str, NodeLink]", view: View) -> None:
        super().__init__(state.node_id, state.token_id, connection)
        self.state = state
        self._nodes, self._view = nodes, view
        self.jobs: dict[str, HeldAttempt] = {}
        self._steps: set[tuple[str, int, str]] = set()
        """The steps that the node has reported for its jobs. Redis records each once."""
        self.lost: set[tuple[str, int]] = set()
        """Attempts that the node had lost when it connected. Their assignments may still arrive, and are ignored."""
        self.settling: set[tuple[str, int]] = set()
        """Attempts whose results are being stored."""
        self.cool_down_reset_at = 0.0
        """When a result last reset the node's cool-down."""

    def assign(self, message: JobAssign, parts: Sequence[bytes]) -> None:
        """Send the node an attempt, unless it has this attempt, or had lost it when it connected."""
        if not self.has(message) and (message.job_id, message.attempt) not in self.lost:
            self.hold(message.job_id, message.attempt, message.capability, message.model)
            self.publish()
            self.connection.send(message, parts)

    def hold(self, job_id: str, attempt: int, capability: str, model: str) -> None:
        """Note that the node has this attempt. Sends nothing."""
        self.jobs[job_id] = HeldAttempt(attempt, capability, model, time.monotonic())

    def cancel(self, message: NodeCancel) -> None:
        """Send the node this cancellation; if the node has an earlier attempt at the job, cancel that instead."""
        job = self.jobs.get(message.job_id)
        if job and job.attempt <= message.attempt:
            self.forget(message.job_id)
            message = message.model_copy(update={"attempt": job.attempt})
        self.connection.send(message)

    def drain(self, reason: str) -> None:
        """Give the node no new jobs, and ask it to finish its jobs and exit."""
        self.publish(draining=True)
        self.connection.send(Drain(reason=reason))

    def has(self, message: JobAssign | JobAck | JobStarted | NodePartial | NodeResult) -> bool:
        """Whether the node has this attempt at the job."""
        job = self.jobs.get(message.job_id)
        return job is not None and job.attempt == message.attempt

    def is_new_step(self, message: JobAck | JobStarted | NodePartial) -> bool:
        """Whether the node has the attempt, and reports this step (a type of message) for the first time. Notes the
        step."""
        key = (message.job_id, message.attempt, message.type)
        if not self.has(message) or key in self._steps:
            return False
        self._steps.add(key)
        return True

    def forget(self, job_id: str, attempt: int | None = None) -> HeldAttempt | None:
        """Remove and return the node's attempt at the job. `attempt`: only if it is this one; None: whichever it is.
        Returns None if nothing was removed."""
        job = self.jobs.get(job_id)
        if job is None or attempt not in (None, job.attempt):
            return None
        del self.jobs[job_id]
        self._steps -= {(job_id, job.attempt, step) for step in _STEPS}
        self.publish()
        return job

    def record_latency(self, job: HeldAttempt) -> None:
        """Add the duration of a finished attempt to the moving average of its capability."""
        took_ms, latency_ms = (time.monotonic() - job.since) * 1000, self.state.latency_ms
        before = latency_ms.get(job.capability, took_ms)
        average = before + _SMOOTHING * (took_ms - before)
        self.state = replace(self.state, latency_ms={**latency_ms, job.capability: average})

    def publish(self, **facts: Any) -> None:
        """Update the node's number of used slots and these fields of its state, and the instance's view of it unless a
        newer connection has replaced this one."""
        self.state = replace(self.state, used=len(self.jobs), **facts)
        if self._nodes.get(self.id) is self:
            self._view.put(self.state)


class SessionLink(Link):
    """A session's connection and its unanswered requests."""

    def __init__(self, name: str, token_id: str, connection: Connection) -> None:
        super().__init__(name, token_id, connection)
        self.requests: dict[str, str] = {}
        """Maps request ids to job ids. Empty: the job is not known yet."""
        self.unwanted: set[str] = set()
        """Requests that the session cancelled before their jobs were known."""
        self._wants_partials: set[str] = set()
        self._sizes: dict[str, int] = {}

    def enter(self, request: JobRequest, size: int) -> None:
        """Add a request that the session waits for; `size`: its bytes, with attachments."""
        self.requests[request.request_id] = ""
        self._sizes[request.request_id] = size
        self.unwanted.discard(request.request_id)
        if request.partials:
            self._wants_partials.add(request.request_id)

    @property
    def waiting_bytes(self) -> int:
        """The size of all unanswered requests, in bytes."""
        return sum(self._sizes.values())

    def waits_for(self, job_id: str) -> bool:
        return job_id in self.requests.values()

    def answer(self, result: SessionResult, parts: Sequence[bytes] = ()) -> None:
        """Answer a request. Harmless if it is answered already."""
        if result.request_id in self.requests:
            self.forget(result.request_id)
            self.connection.send(result, parts)

    def refuse(self, request_id: str, error: JobError) -> None:
        """Send an error for a request that `enter` has not added."""
        self.connection.send(SessionResult(request_id=request_id, error=error))

    def fail(self, request_id: str, error: JobError, job_id: str = "") -> None:
        """Answer a request with an error. Harmless if it is answered already."""
        self.answer(SessionResult(request_id=request_id, job_id=job_id, error=error))

    def partial(self, message: SessionPartial) -> None:
        """Send a piece of a job's text if the request asked for pieces; drop it if the session reads too slowly."""
        if message.request_id in self._wants_partials:
            self.connection.send(message, dispensable=True)

    def forget(self, request_id: str) -> None:
        """Stop waiting for a request. Sends nothing."""
        self.requests.pop(request_id, None)
        self._sizes.pop(request_id, None)
        self._wants_partials.discard(request_id)
        self.unwanted.discard(request_id)


AnyLink = TypeVar("AnyLink", bound=Link)


class Links(dict[str, AnyLink]):
    """The links of one kind to this instance, by id. Takes and renews their ownership."""

    def __init__(
        self,
        noun: str,
        owners: Owners,
        inbox: Inbox,
        instance_id: str,
        spawn: Spawn,
        on_leave: Callable[[str], Awaitable[object]] | None = None,
    ) -> None:
        """`on_leave`: called with the name of a link that has left this instance and connected to no other."""
        super().__init__()
        self._noun = noun
        self._owners = owners
        self._inbox = inbox
        self._instance_id = instance_id
        self._spawn = spawn
        self._on_leave = on_leave

    async def elsewhere(self, name: str, dead: str = "") -> str:
        """Return the id of the other instance that owns the name. Empty: this instance, `dead` or none owns it."""
        owner = await self._owners.owner(name)
        return "" if owner in {self._instance_id, dead} else owner

    @asynccontextmanager
    async def connected(self, link: AnyLink) -> AsyncIterator[None]:
        """Hold the link and its ownership within the block. Closes older links of the same name, at any instance."""
        if before := self.get(link.id):
            before.close(CloseCode.REPLACED, f"the {self._noun} has opened a newer connection")
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
        """End the ownership, unless the client has reconnected, here or elsewhere."""
        if self._on_leave and await self._owners.owner(name) == self._instance_id and name not in self:
            await self._on_leave(name)
        if name not in self:
            await self._owners.drop(name, self._instance_id)
            if name in self:  # the client reconnected during the await
                await self._owners.take(name, self._instance_id)

    async def drop_all(self) -> None:
        """End the ownership of all links, before the instance ends."""
        for name in list(self):
            await self._owners.drop(name, self._instance_id)

    async def renew(self) -> None:
        """Prolong the ownership of all links, and close those that another instance owns now.

        Skips links that are still registering, because they take their ownership later.
        """
        owned = {name: link for name, link in self.items() if link.owned}
        for name in await self._owners.renew(self._instance_id, owned):
            owned[name].close(CloseCode.REPLACED, f"the {self._noun} is connected to another instance")

    async def kick(self, name: str) -> None:
        """Close a link that another instance owns now. Harmless if this instance is the owner again.

        Skips a link that is still registering, because it takes its ownership after this message.
        """
        link = self.get(name)
        if link and link.owned and await self._owners.owner(name) != self._instance_id:
            link.close(CloseCode.REPLACED, f"the {self._noun} is connected to another instance")

    def close_all(self, code: CloseCode, reason: str, token_id: str = "") -> None:
        """Start to close all links; with `token_id`, only those with this token."""
        for link in self.values():
            if token_id in {"", link.token_id}:
                link.close(code, reason)
