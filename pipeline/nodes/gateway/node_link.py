"""One node that is connected here: what it says about its jobs, and what that changes."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import structlog
from redis import RedisError

from pipeline.nodes.gateway.connection import Connection
from pipeline.nodes.job import Job
from pipeline.nodes.parcel import Parcel
from pipeline.nodes.protocol import (
    MODEL_NOT_AVAILABLE,
    NODE_BUSY,
    NODE_LOST,
    CloseCode,
    Drain,
    FromNode,
    JobAck,
    JobAssign,
    JobError,
    JobStarted,
    NodeCancel,
    NodeDrain,
    NodePartial,
    NodeRegister,
    NodeResult,
    NodeResultReceived,
    NodeWelcome,
    from_node,
)
from pipeline.nodes.state.snapshots import NodeState
from pipeline.nodes.tokens import TokenView

if TYPE_CHECKING:
    from pipeline.nodes.gateway.instance import Instance

log = structlog.get_logger(__name__)
Found = TypeVar("Found")
_SMOOTHING = 0.2
"""How much the latest latency counts in the average."""
_LARGE_BYTES = 2**20
_STEPS = ("job_ack", "job_started", "job_partial")
_MISSED = 3
"""Heartbeats that may be missing."""


class NodeLink:
    """A node's connection, its jobs, and how it does."""

    def __init__(
        self, instance: "Instance", connection: Connection, register: NodeRegister, token: TokenView, now_ms: int
    ) -> None:
        self._at = instance
        self._connection = connection
        self.token_id = token.id
        self.owned = False
        """Whether Redis knows that it is connected to this instance."""
        self.state = NodeState(
            node_id=register.node_id,
            name=register.name,
            token_id=token.id,
            instance_id=instance.instance_id,
            slots=register.slots,
            used=0,
            offers=register.offers,
            latency_ms={},
            draining=False,
            software=register.software,
            connected_ms=now_ms,
            last_seen_ms=now_ms,
        )
        self.jobs: dict[str, tuple[int, str, str, float]] = {}
        """What it has: job → attempt, capability, model, since when."""
        self._told: set[tuple[str, int, str]] = set()
        """Which steps of its jobs it has told: each is written once, however often it is said."""
        self._lost: set[tuple[str, int]] = set()
        """What it had lost when it connected, and others have by now: it may still be on its way here."""
        self._settling: set[tuple[str, int]] = set()
        """Results that are being stored."""

    @property
    def id(self) -> str:
        return self.state.node_id

    # What it is told

    def welcome(self) -> None:
        """The first word: it comes before any job."""
        settings = self._at.settings
        welcome = NodeWelcome(
            instance_id=self._at.instance_id,
            heartbeat_ms=settings.heartbeat_ms,
            max_message_bytes=settings.max_message_bytes,
            max_attachment_bytes=settings.max_attachment_bytes,
        )
        self._connection.send(welcome)

    def assign(self, message: JobAssign, parts: Sequence[bytes]) -> None:
        """Give it a job; one that it has in this attempt already is not given again."""
        if self._has(message) or (message.job_id, message.attempt) in self._lost:
            return
        self.jobs[message.job_id] = (message.attempt, message.capability, message.model, time.monotonic())
        self._show()
        self._connection.send(message, parts)

    def say(self, message: NodeCancel | Drain) -> None:
        """A word without an answer."""
        if isinstance(message, NodeCancel):
            attempt = self.jobs.get(message.job_id, (0,))[0]
            if 0 < attempt <= message.attempt:  # what ends an attempt ends those before it
                self._forget(message.job_id)
                message = message.model_copy(update={"attempt": attempt})
        self._connection.send(message)

    def drain(self, reason: str) -> None:
        """It gets no more jobs, and is asked to finish and go."""
        self.state = replace(self.state, draining=True)
        self._show()
        self._connection.send(Drain(reason=reason))

    def close(self, code: CloseCode, reason: str) -> None:
        self._connection.close(code, reason)

    # What it says

    async def serve(self, register: NodeRegister) -> None:
        """Until it goes, or is silent for three heartbeats. Raises `Ended`, `BadMessage`, `TimeoutError`."""
        await self._reconcile(register)
        self._show()
        self._at.spawn(self._at.dispatch.lines.freed(self.id))
        within_s = _MISSED * self._at.settings.heartbeat_ms / 1000
        while True:
            message, parts = await self._connection.receive(from_node, within_s)
            self.state = replace(self.state, last_seen_ms=self._at.now_ms())
            await self._take(message, parts)

    async def _reconcile(self, register: NodeRegister) -> None:
        """Jobs that it has lost go to others; those that it has for nothing are ended; the others go on."""
        at, held = self._at, {one.job_id: one.attempt for one in register.held}
        hold_ms = at.settings.attempt_timeout_ms + 10_000
        for job_id, attempt in held.items():
            job = await at.state.jobs.get(job_id)
            if job is None or not self._owns(job) or job.attempt != attempt or job.outcome:
                self._connection.send(NodeCancel(job_id=job_id, attempt=attempt, reason="late"))
                continue
            await at.state.slots.reserve(self.id, job_id, slots=1024, model=job.model, ttl_ms=hold_ms)
            self.jobs[job_id] = (attempt, job.capability, job.model, time.monotonic())
        for job_id in set(await at.state.slots.held(self.id)) - set(self.jobs):
            job = await at.state.jobs.get(job_id)
            if at.nodes.get(self.id) is not self:
                return  # it has connected anew, and this is what that connection looks at
            # It may have been given one meanwhile: whoever is connected is given jobs.
            if job and job.node_id == self.id and not job.outcome and job_id not in self.jobs:
                self._lost.add((job_id, job.attempt))
                await self._give_back(job_id, job.attempt, JobError(code=NODE_LOST, message="the node has lost it"))

    async def _take(self, message: FromNode, parts: Sequence[bytes]) -> None:
        at = self._at
        match message:
            case JobAck():
                if self._tells(message):
                    at.spawn(at.state.jobs.acknowledged(message.job_id, message.attempt, self.id))
            case JobStarted():
                if self._tells(message):
                    at.spawn(at.state.jobs.started(message.job_id, message.attempt, self.id))
            case NodePartial():
                await self._partial_came(message)
            case NodeResult():
                # By itself, so that storing one result does not hold up the node's next word; but a large one does, or
                # a node could fill the memory with what Redis has not taken yet.
                settling = self._result_came(message, parts)
                await settling if self._connection.received_bytes > _LARGE_BYTES else at.spawn(settling)
            case NodeDrain():
                self.state = replace(self.state, draining=True)
                self._show()
            case NodeRegister():
                self.close(CloseCode.BAD_MESSAGE, "it is registered already")

    def _owns(self, job: Job) -> bool:
        """Whether the job was given to this node: to its name, under its token."""
        return (job.node_id, job.node_token) == (self.id, self.token_id)

    def _has(self, message: JobAssign | NodeCancel | JobAck | JobStarted | NodePartial | NodeResult) -> bool:
        """Whether it has this job, in this attempt."""
        return self.jobs.get(message.job_id, (0,))[0] == message.attempt

    def _tells(self, message: JobAck | JobStarted | NodePartial) -> bool:
        """Whether it says so for the first time, of a job that it has."""
        key = (message.job_id, message.attempt, message.type)
        if not self._has(message) or key in self._told:
            return False
        self._told.add(key)
        return True

    async def _partial_came(self, message: NodePartial) -> None:
        at = self._at
        if not self._has(message):
            return  # late: the job is with another node, or over
        if self._tells(message) and not await at.state.jobs.partial(message.job_id, message.attempt, self.id):
            self._forget(message.job_id)
            return
        job = await at.state.jobs.get(message.job_id)
        if job is not None and job.attempt == message.attempt:
            await at.delivery.partial(job, message.attempt, message.text)

    async def _result_came(self, message: NodeResult, parts: Sequence[bytes]) -> None:
        """Store the result, and only then tell the node that it need not keep it."""
        key = (message.job_id, message.attempt)
        if key in self._settling:
            return  # sent twice
        if not self._has(message):
            log.info("node.late_result", node=self.id, job=message.job_id, attempt=message.attempt)
            self._received(message, taken=False)
            return
        self._settling.add(key)
        code = message.error.code if message.error else ""
        handle = self._refused if code in {MODEL_NOT_AVAILABLE, NODE_BUSY} else self._finished
        try:
            taken = await self._persist(lambda: handle(message, parts))
        finally:
            self._settling.discard(key)
        if taken is not None:
            self._received(message, taken=taken)

    def _received(self, message: NodeResult, *, taken: bool) -> None:
        self._connection.send(NodeResultReceived(job_id=message.job_id, attempt=message.attempt, taken=taken))

    async def _persist(self, act: Callable[[], Awaitable[Found]]) -> Found | None:
        """Do what must not be lost: while Redis is away, again and again, as long as the node is connected."""
        wait_s = 0.1
        while self._connection.open:
            try:
                return await act()
            except RedisError as error:
                log.warning("node.result_waits", node=self.id, error=type(error).__name__)
                await asyncio.sleep(wait_s)
                wait_s = min(2.0, wait_s * 2)
        return None

    async def _finished(self, message: NodeResult, parts: Sequence[bytes]) -> bool:
        at = self._at
        head = message.model_dump(include={"result", "error", "attachments"}, exclude_none=True)
        if message.error is None and message.result is None:
            head["error"] = JobError(code="bad_reply", message="the node gave neither result nor error").model_dump()
        packed = Parcel({**head, "attempt": message.attempt, "node_id": self.id}, parts).pack()
        error = message.error
        finished = await at.state.jobs.finish(
            message.job_id,
            message.attempt,
            self.id,
            packed,
            "error" if "error" in head else "ok",
            error.code if error else "",
            error.message if error else "",
        )
        entry = self._forget(message.job_id, message.attempt)
        if finished is None:
            return False
        if finished.again:
            packed = await at.state.jobs.result(message.job_id) or packed
        if entry:
            self._took(entry[1], (time.monotonic() - entry[3]) * 1000)
        await at.delivery.result(finished, packed)
        at.spawn(at.settle(finished))
        return True

    async def _refused(self, message: NodeResult, parts: Sequence[bytes]) -> bool:  # noqa: ARG002  # one signature
        """The node cannot do this job now: another shall. Source 004, the storm guard of MODEL_NOT_AVAILABLE."""
        at, error = self._at, message.error or JobError()
        entry = self._forget(message.job_id, message.attempt)
        if error.code == MODEL_NOT_AVAILABLE:
            job = await at.state.jobs.get(message.job_id)
            model = entry[2] if entry else job.model if job else ""
            if await at.state.slots.model_missing(self.id, model):
                log.warning("node.model_missing", node=self.id, model=model)
        else:
            # It counts its slots otherwise than the gateway. To ask it again at once would cost jobs their attempts.
            await at.state.slots.dropped(self.id)
        at.view.is_full(self.id, time.monotonic())
        return await self._give_back(message.job_id, message.attempt, error)

    async def _give_back(self, job_id: str, attempt: int, error: JobError) -> bool:
        """Let another node try; the job fails if it had tries enough. Whether this was the attempt that counted.

        A busy node costs no try: it may still be at something that was cancelled.
        """
        at = self._at
        job = await at.state.jobs.retry(job_id, attempt, free=error.code == NODE_BUSY)
        if job is None:
            job = await at.state.jobs.get(job_id)
            if job is None or job.attempt != attempt or job.node_id != self.id or job.outcome:
                return False
            why = f"no node would do it: {error.message or error.code}"[:2000]
            return await at.dispatch.end(job_id, error.model_copy(update={"message": why}))
        await at.state.slots.release(self.id, job_id)
        await at.delivery.tell(job.home, "again", {"job_id": job_id, "node_id": self.id})
        return True

    async def look(self) -> None:
        """Forget jobs that ended without a word to this connection: it was lost between instances."""
        before = {job_id: entry for job_id, entry in self.jobs.items() if (job_id, entry[0]) not in self._settling}
        for job, (job_id, entry) in zip(await self._at.state.jobs.get_all(list(before)), before.items(), strict=True):
            is_its = job is not None and not job.outcome and self._owns(job) and job.attempt == entry[0]
            if not is_its and self.jobs.get(job_id) is entry:
                self.say(NodeCancel(job_id=job_id, attempt=entry[0], reason="late"))

    # How it does

    def _forget(self, job_id: str, attempt: int | None = None) -> tuple[int, str, str, float] | None:
        entry = self.jobs.get(job_id)
        if entry is None or (attempt is not None and entry[0] != attempt):
            return None
        del self.jobs[job_id]
        self._told -= {(job_id, entry[0], step) for step in _STEPS}
        self._show()
        return entry

    def _took(self, capability: str, ms: float) -> None:
        before = self.state.latency_ms.get(capability, ms)
        average = before + _SMOOTHING * (ms - before)
        self.state = replace(self.state, latency_ms={**self.state.latency_ms, capability: average})

    def _show(self) -> None:
        self.state = replace(self.state, used=len(self.jobs))
        if self._at.nodes.get(self.id) is self:
            self._at.view.put(self.state)
