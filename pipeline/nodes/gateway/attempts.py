"""Attempts at jobs by the local nodes: handles their acknowledgements, partial results and results."""

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
_MISSED_HEARTBEATS = 3
"""After so many heartbeat intervals of silence, a node counts as gone."""
_RESET_S = 1.0
"""The least time between two resets of a working node's cool-down."""


class Attempts:
    """Serves the nodes of this instance."""

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
        """`now_ms`: returns approximately Redis' time."""
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
        """Handle a node's messages until it disconnects. Raises `Ended`, `BadMessage`, and `RedisError`.

        Raises `TimeoutError` after three heartbeat intervals of silence.
        """
        await self._reconcile(link, register)
        link.publish()
        self._spawn(self._lines.slot_freed(link.id))
        within_s = _MISSED_HEARTBEATS * self._settings.heartbeat_ms / 1000
        while True:
            message, parts = await link.connection.receive(from_node, within_s)
            link.state = replace(link.state, last_seen_ms=self._now_ms())
            await self._take(link, message, parts)

    async def _reconcile(self, link: NodeLink, register: NodeRegister) -> None:
        """Compare the jobs that the node holds with Redis: cancel obsolete ones, and retry lost ones elsewhere."""
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
                return  # the node has reconnected, and the new connection reconciles its jobs
            # Check `link.jobs` again: the node may have got the job during the awaits above.
            if job and job.node_id == link.id and not job.outcome and job_id not in link.jobs:
                link.lost.add((job_id, job.attempt))
                error = JobError(code=NODE_LOST, message="the node lost the job when it reconnected")
                await self._give_back(link.id, job_id, job.attempt, error)

    async def _take(self, link: NodeLink, message: FromNode, parts: Sequence[bytes]) -> None:
        match message:
            case JobAck():
                if link.is_new_step(message):
                    self._spawn(self._jobs.acknowledge(message.job_id, message.attempt, link.id))
            case JobStarted():
                if link.is_new_step(message):
                    self._spawn(self._jobs.start(message.job_id, message.attempt, link.id))
            case NodePartial():
                await self._forward(link, message)
            case NodeResult():
                # Store small results in the background, so that the node's next message need not wait. Wait for large
                # ones, or a node could fill the memory faster than Redis takes its results.
                storing = self._store(link, message, parts)
                await storing if link.connection.received_bytes > _LARGE_BYTES else self._spawn(storing)
            case NodeDrain():
                link.publish(draining=True)
            case NodeRegister():
                link.close(CloseCode.BAD_MESSAGE, "the node is already registered")

    async def _forward(self, link: NodeLink, message: NodePartial) -> None:
        """Send a piece of a job's text to the sessions that wait for the job; drop it if the node no longer has the
        attempt."""
        if not link.has(message):
            return  # the job is at another node, or over
        if link.is_new_step(message) and not await self._jobs.record_partial(message.job_id, message.attempt, link.id):
            link.forget(message.job_id)
            return
        job = await self._jobs.get(message.job_id)
        if job is not None and job.attempt == message.attempt:
            await self._delivery.partial(job, message.attempt, message.text)

    async def _store(self, link: NodeLink, message: NodeResult, parts: Sequence[bytes]) -> None:
        """Store the result, or pass on a job that the node refuses; then tell the node that it may drop the result."""
        key = (message.job_id, message.attempt)
        if key in link.settling:
            return  # the node sent the result twice
        taken: bool | None = False
        if link.has(message):
            link.settling.add(key)
            code = message.error.code if message.error else ""
            handle = self._refuse if code in {MODEL_NOT_AVAILABLE, NODE_BUSY} else self._finish
            try:
                taken = await _persist(link, lambda: handle(link, message, parts))
            finally:
                link.settling.discard(key)
        else:
            log.info("node.late_result", node=link.id, job=message.job_id, attempt=message.attempt)
        if taken is not None:
            link.connection.send(NodeResultReceived(job_id=message.job_id, attempt=message.attempt, taken=taken))

    async def _finish(self, link: NodeLink, message: NodeResult, parts: Sequence[bytes]) -> bool:
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
        held = link.forget(message.job_id, message.attempt)
        if finished is None:
            return False
        if finished.repeated:
            packed = await self._jobs.result(message.job_id) or packed
        if held:
            link.record_latency(held)
        self._dispatch.forget(message.job_id)
        await self._delivery.result(finished, packed)
        if finished.job.outcome == "ok" and time.monotonic() - link.cool_down_reset_at > _RESET_S:
            link.cool_down_reset_at = time.monotonic()
            self._spawn(self._slots.reset_cool_down(link.id))
        self._spawn(self._dispatch.settle(finished.job))
        return True

    async def _refuse(self, link: NodeLink, message: NodeResult, parts: Sequence[bytes]) -> bool:  # noqa: ARG002
        """Give a job that the node refused to another node, and give the node no jobs, or none for this model, for a
        while. False: the attempt was over already. Rule: docs/sources/nodes.md#storm-guard."""
        error = message.error or JobError()
        held = link.forget(message.job_id, message.attempt)
        if error.code == MODEL_NOT_AVAILABLE:
            job = held or await self._jobs.get(message.job_id)
            model = job.model if job else ""
            if await self._slots.mark_model_missing(link.id, model):
                log.warning("node.model_missing", node=link.id, model=model)
        else:
            # The node has fewer free slots than the gateway counts, so the next job would bounce as well.
            await self._slots.cool_down(link.id)
        self._view.mark_full(link.id, time.monotonic())
        return await self._give_back(link.id, message.job_id, message.attempt, error)

    async def _give_back(self, node_id: str, job_id: str, attempt: int, error: JobError) -> bool:
        """End the attempt at this node: start the job's next attempt, or fail the job after its last one. False: the
        attempt was over already.

        `NODE_BUSY` does not count as an attempt, since the node may still be busy with a cancelled job.
        """
        job = await self._jobs.retry(job_id, attempt, free=error.code == NODE_BUSY)
        if job is None:
            job = await self._jobs.get(job_id)
            if job is None or job.attempt != attempt or job.node_id != node_id or job.outcome:
                return False
            message = f"every attempt failed, the last with: {error.message or error.code}"[:2000]
            return await self._dispatch.end(job_id, error.model_copy(update={"message": message}))
        await self._slots.release(node_id, job_id)
        await self._delivery.notify_home(job.home, "again", job_id, node_id)
        return True

    async def renew(self) -> None:
        """Prolong the slots of the nodes' jobs, and cancel jobs that ended while the message to the node was lost."""
        for link in list(self._nodes.values()):
            if link.jobs:
                await self._cancel_ended(link)
                await self._slots.renew(link.id, list(link.jobs), self._settings.slot_hold_ms)

    async def _cancel_ended(self, link: NodeLink) -> None:
        before = {job_id: held for job_id, held in link.jobs.items() if (job_id, held.attempt) not in link.settling}
        for job, (job_id, held) in zip(await self._jobs.get_all(list(before)), before.items(), strict=True):
            is_current = job is not None and not job.outcome and _owns(link, job) and job.attempt == held.attempt
            if not is_current and link.jobs.get(job_id) is held:
                link.cancel(NodeCancel(job_id=job_id, attempt=held.attempt, reason="late"))


def _owns(link: NodeLink, job: Job) -> bool:
    """Whether the job's attempt belongs to this node: to its name and its token."""
    return (job.node_id, job.node_token) == (link.id, link.token_id)


async def _persist(link: NodeLink, act: Callable[[], Awaitable[bool]]) -> bool | None:
    """Return the answer of `act`, retried while Redis is away. None: the node disconnected first."""
    wait_s = 0.1
    while link.connection.open:
        try:
            return await act()
        except RedisError as error:
            log.warning("node.result_waits", node=link.id, error=type(error).__name__)
            await asyncio.sleep(wait_s)
            wait_s = min(2.0, wait_s * 2)
    return None
