"""What nodes that are connected here say about their attempts at jobs, and what that changes."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import structlog
from redis import RedisError

from pipeline.nodes.gateway.background import Spawn
from pipeline.nodes.gateway.delivery import Delivery
from pipeline.nodes.gateway.dispatch import Dispatch
from pipeline.nodes.gateway.lines import Lines
from pipeline.nodes.gateway.links import Links, NodeLink
from pipeline.nodes.gateway.view import View
from pipeline.nodes.job import Job
from pipeline.nodes.parcel import Parcel
from pipeline.nodes.protocol import (
    MODEL_NOT_AVAILABLE,
    NODE_BUSY,
    NODE_LOST,
    CloseCode,
    FromNode,
    JobAck,
    JobError,
    JobStarted,
    NodeCancel,
    NodeDrain,
    NodePartial,
    NodeRegister,
    NodeResult,
    NodeResultReceived,
    from_node,
)
from pipeline.nodes.settings import GatewaySettings
from pipeline.nodes.state.jobs import Jobs
from pipeline.nodes.state.slots import Slots

log = structlog.get_logger(__name__)
_LARGE_BYTES = 2**20
_MISSED = 3
"""Heartbeats that may be missing."""
_FORGIVE_S = 1.0
"""How often the drops of a node that does its jobs are forgiven."""


class Attempts:
    """The attempts of all nodes of this instance."""

    def __init__(
        self,
        settings: GatewaySettings,
        nodes: Links[NodeLink],
        jobs: Jobs,
        slots: Slots,
        view: View,
        lines: Lines,
        delivery: Delivery,
        dispatch: Dispatch,
        spawn: Spawn,
        now_ms: Callable[[], int],
    ) -> None:
        """`now_ms`: about the time by Redis."""
        self._settings = settings
        self._nodes = nodes
        self._jobs = jobs
        self._slots = slots
        self._view = view
        self._lines = lines
        self._delivery = delivery
        self._dispatch = dispatch
        self._spawn = spawn
        self._now_ms = now_ms

    async def serve(self, link: NodeLink, register: NodeRegister) -> None:
        """Until the node goes, or is silent for three heartbeats. Raises `Ended`, `BadMessage`, `TimeoutError`."""
        await self._reconcile(link, register)
        link.show()
        self._spawn(self._lines.slot_freed(link.id))
        within_s = _MISSED * self._settings.heartbeat_ms / 1000
        while True:
            message, parts = await link.connection.receive(from_node, within_s)
            link.state = replace(link.state, last_seen_ms=self._now_ms())
            await self._take(link, message, parts)

    async def _reconcile(self, link: NodeLink, register: NodeRegister) -> None:
        """Jobs that it has lost go to others; those that it has for nothing are ended; the others go on."""
        for held in register.held:
            job = await self._jobs.get(held.job_id)
            if job is None or not _owns(link, job) or job.attempt != held.attempt or job.outcome:
                link.connection.send(NodeCancel(job_id=held.job_id, attempt=held.attempt, reason="late"))
                continue
            await self._slots.reserve(
                link.id, job.job_id, slots=1024, model=job.model, ttl_ms=self._settings.slot_hold_ms
            )
            link.hold(job.job_id, job.attempt, job.capability, job.model)
        for job_id in set(await self._slots.held(link.id)) - set(link.jobs):
            job = await self._jobs.get(job_id)
            if self._nodes.get(link.id) is not link:
                return  # it has connected anew, and this is what that connection looks at
            # It may have been given one meanwhile: whoever is connected is given jobs.
            if job and job.node_id == link.id and not job.outcome and job_id not in link.jobs:
                link.lost.add((job_id, job.attempt))
                error = JobError(code=NODE_LOST, message="the node has lost it")
                await self._give_back(link.id, job_id, job.attempt, error)

    async def _take(self, link: NodeLink, message: FromNode, parts: Sequence[bytes]) -> None:
        match message:
            case JobAck():
                if link.tells(message):
                    self._spawn(self._jobs.acknowledge(message.job_id, message.attempt, link.id))
            case JobStarted():
                if link.tells(message):
                    self._spawn(self._jobs.start(message.job_id, message.attempt, link.id))
            case NodePartial():
                await self._pass_on(link, message)
            case NodeResult():
                # By itself, so that storing one result does not hold up the node's next word; but a large one does, or
                # a node could fill the memory with what Redis has not taken yet.
                storing = self._store(link, message, parts)
                await storing if link.connection.received_bytes > _LARGE_BYTES else self._spawn(storing)
            case NodeDrain():
                link.show(draining=True)
            case NodeRegister():
                link.close(CloseCode.BAD_MESSAGE, "it is registered already")

    async def _pass_on(self, link: NodeLink, message: NodePartial) -> None:
        """A piece of a result, to those who wait for it."""
        if not link.has(message):
            return  # late: the job is with another node, or over
        if link.tells(message) and not await self._jobs.record_partial(message.job_id, message.attempt, link.id):
            link.forget(message.job_id)
            return
        job = await self._jobs.get(message.job_id)
        if job is not None and job.attempt == message.attempt:
            await self._delivery.partial(job, message.attempt, message.text)

    async def _store(self, link: NodeLink, message: NodeResult, parts: Sequence[bytes]) -> None:
        """Store the result, and only then tell the node that it need not keep it."""
        key = (message.job_id, message.attempt)
        if key in link.settling:
            return  # sent twice
        taken: bool | None = False
        if link.has(message):
            link.settling.add(key)
            code = message.error.code if message.error else ""
            handle = self._refused if code in {MODEL_NOT_AVAILABLE, NODE_BUSY} else self._finished
            try:
                taken = await _persist(link, lambda: handle(link, message, parts))
            finally:
                link.settling.discard(key)
        else:
            log.info("node.late_result", node=link.id, job=message.job_id, attempt=message.attempt)
        if taken is not None:
            link.connection.send(NodeResultReceived(job_id=message.job_id, attempt=message.attempt, taken=taken))

    async def _finished(self, link: NodeLink, message: NodeResult, parts: Sequence[bytes]) -> bool:
        error = message.error
        head = message.model_dump(include={"result", "error", "attachments"}, exclude_none=True)
        if error is None and message.result is None:
            head["error"] = JobError(code="bad_reply", message="the node gave neither result nor error").model_dump()
        packed = Parcel({**head, "attempt": message.attempt, "node_id": link.id}, parts).pack()
        finished = await self._jobs.finish(
            message.job_id,
            message.attempt,
            link.id,
            packed,
            "error" if "error" in head else "ok",
            error.code if error else "",
            error.message if error else "",
        )
        in_hand = link.forget(message.job_id, message.attempt)
        if finished is None:
            return False
        if finished.repeated:
            packed = await self._jobs.result(message.job_id) or packed
        if in_hand:
            link.measure(in_hand)
        self._dispatch.forget(message.job_id)
        await self._delivery.result(finished, packed)
        if finished.job.outcome == "ok" and time.monotonic() - link.forgiven > _FORGIVE_S:
            link.forgiven = time.monotonic()
            self._spawn(self._slots.reset_cool_down(link.id))
        self._spawn(self._dispatch.settle(finished.job))
        return True

    async def _refused(self, link: NodeLink, message: NodeResult, parts: Sequence[bytes]) -> bool:  # noqa: ARG002
        """The node cannot do this job now: another shall. Rule: docs/sources/nodes.md#storm-guard."""
        error = message.error or JobError()
        in_hand = link.forget(message.job_id, message.attempt)
        if error.code == MODEL_NOT_AVAILABLE:
            job = in_hand or await self._jobs.get(message.job_id)
            model = job.model if job else ""
            if await self._slots.mark_model_missing(link.id, model):
                log.warning("node.model_missing", node=link.id, model=model)
        else:
            # It counts its slots otherwise than the gateway. To ask it again at once would cost jobs their attempts.
            await self._slots.cool_down(link.id)
        self._view.is_full(link.id, time.monotonic())
        return await self._give_back(link.id, message.job_id, message.attempt, error)

    async def _give_back(self, node_id: str, job_id: str, attempt: int, error: JobError) -> bool:
        """Let another node try; the job fails if it had tries enough. Whether this was the attempt that counted.

        A busy node costs no try: it may still be at something that was cancelled.
        """
        job = await self._jobs.retry(job_id, attempt, free=error.code == NODE_BUSY)
        if job is None:
            job = await self._jobs.get(job_id)
            if job is None or job.attempt != attempt or job.node_id != node_id or job.outcome:
                return False
            why = f"no node would do it: {error.message or error.code}"[:2000]
            return await self._dispatch.end(job_id, error.model_copy(update={"message": why}))
        await self._slots.release(node_id, job_id)
        await self._delivery.tell(job.home, "again", job_id, node_id)
        return True

    async def renew(self) -> None:
        """Prolong the slots of what nodes have, and end jobs that ended without a word to the connection."""
        for link in list(self._nodes.values()):
            if link.jobs:
                await self._end_lost(link)
                await self._slots.renew(link.id, list(link.jobs), self._settings.slot_hold_ms)

    async def _end_lost(self, link: NodeLink) -> None:
        """Forget jobs whose ends were lost between instances."""
        before = {job_id: held for job_id, held in link.jobs.items() if (job_id, held.attempt) not in link.settling}
        for job, (job_id, held) in zip(await self._jobs.get_all(list(before)), before.items(), strict=True):
            is_its = job is not None and not job.outcome and _owns(link, job) and job.attempt == held.attempt
            if not is_its and link.jobs.get(job_id) is held:
                link.cancel(NodeCancel(job_id=job_id, attempt=held.attempt, reason="late"))


def _owns(link: NodeLink, job: Job) -> bool:
    """Whether the job was given to this node: to its name, under its token."""
    return (job.node_id, job.node_token) == (link.id, link.token_id)


async def _persist(link: NodeLink, act: Callable[[], Awaitable[bool]]) -> bool | None:
    """Do what must not be lost: while Redis is away, again and again, as long as the node is connected."""
    wait_s = 0.1
    while link.connection.open:
        try:
            return await act()
        except RedisError as error:
            log.warning("node.result_waits", node=link.id, error=type(error).__name__)
            await asyncio.sleep(wait_s)
            wait_s = min(2.0, wait_s * 2)
    return None
