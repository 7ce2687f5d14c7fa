"""Scheduling of the jobs that this instance is home to, with retries and deadlines.

Rules: docs/sources/nodes.md#jobs.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog
from prometheus_client import Histogram

from pipeline.nodes.gateway.background import Spawn
from pipeline.nodes.gateway.delivery import Delivery
from pipeline.nodes.gateway.home_job import HomeJob
from pipeline.nodes.gateway.lines import MAX_CANDIDATES, Lines
from pipeline.nodes.gateway.view import View
from pipeline.nodes.job import DONE, WITH_NODE, Job, JobState
from pipeline.nodes.protocol import CANCELLED, NO_NODE, NODE_LOST, STATE_LOST, TIMED_OUT, JobError
from pipeline.nodes.settings import GatewaySettings
from pipeline.nodes.state.instances import Instances
from pipeline.nodes.state.jobs import Jobs
from pipeline.nodes.state.queue import Waiting
from pipeline.nodes.state.slots import Reserved, Slots

log = structlog.get_logger(__name__)
_BUSY_S = 0.2
"""How long the gateway skips a node after a reservation failed."""
_CHUNK = 200
"""Jobs that are checked concurrently."""
_IN_LINE_S, _SYNC_S = 2.0, 2.0
"""How often a waiting job is put in line again, and how often a job is compared with Redis."""
STATE_GONE = JobError(code=STATE_LOST, message="Redis lost the state of this job: retry the request")


class Dispatch:
    """Schedules jobs until they end."""

    def __init__(
        self,
        home: str,
        settings: GatewaySettings,
        jobs: Jobs,
        slots: Slots,
        waiting: Waiting,
        instances: Instances,
        view: View,
        lines: Lines,
        delivery: Delivery,
        spawn: Spawn,
        now_ms: Callable[[], Awaitable[int]],
        dispatched: Histogram,
    ) -> None:
        """`now_ms`: returns Redis' time. `dispatched`: observes how long requests waited for their nodes."""
        self.jobs: dict[str, HomeJob] = {}
        self._home = home
        self._settings = settings
        self._states = jobs
        self._slots = slots
        self._waiting = waiting
        self._instances = instances
        self._view = view
        self._lines = lines
        self._delivery = delivery
        self._spawn = spawn
        self._now_ms = now_ms
        self._dispatched = dispatched

    async def take(self, job: HomeJob) -> None:
        """Follow a new or adopted job, whose home this instance is, and give it to a node or put it in line."""
        self.jobs[job.id] = job
        await self._schedule(job)

    async def _schedule(self, job: HomeJob) -> None:
        """Give the job to a node with a free slot if no other job is in the line of its pool; otherwise put it in line.
        Fails a job that does not wait for a node if no node offers what it needs."""
        need = job.need
        job.in_line_since = time.monotonic()  # keeps `check` from scheduling the job again for a while
        if not self._view.offered(need) and job.request.if_no_node == "error":
            await self._view.refresh()
            if not self._view.offered(need):
                message = f"no node offers {need.capability}" + (f" with model {need.model}" if need.model else "")
                await self._fail(job, JobError(code=NO_NODE, message=message, kind="rate_limited", retry_after_s=5))
                return
        if not await self._waiting.heads(need.pool, 1) and await self._reserve_and_send(job):
            return
        await self._wait_in_line(job)

    async def _reserve_and_send(self, job: HomeJob) -> bool:
        failed = frozenset(job.failed_nodes)
        for node in self._view.candidates(job.need, time.monotonic() - _BUSY_S, failed)[:MAX_CANDIDATES]:
            if await self._reserve(job, node.node_id, node.slots):
                await self._send(job, node.node_id)
                return True
        return False

    async def _reserve(self, job: HomeJob, node_id: str, slots: int) -> bool:
        reserved = await self._lines.reserve(job.id, node_id, slots, job.need.model, self._hold_ms(job))
        return reserved is Reserved.HELD

    def _hold_ms(self, job: HomeJob) -> int:
        # Hold the slot longer than the attempt, since the node may still be at work when the attempt is over.
        remaining_ms = min(job.deadline - time.monotonic(), self._attempt_s(job)) * 1000
        return max(1000, int(remaining_ms)) + 10_000

    def _attempt_s(self, job: HomeJob) -> float:
        return (job.request.attempt_timeout_ms or self._settings.attempt_timeout_ms) / 1000

    async def _wait_in_line(self, job: HomeJob) -> None:
        now = time.monotonic()
        if job.id not in self.jobs:
            return
        job.in_line_since, ttl_ms = now, max(1, int((job.deadline - now) * 1000))
        await self._waiting.enter(job.need.pool, job.id, job.job.requester, self._home, ttl_ms)
        if job.id not in self.jobs:  # the job ended during the await
            await self._waiting.leave(job.need.pool, job.id)
        self._lines.pump(job.need.pool)

    async def notify(self, kind: str, job_id: str, node_id: str) -> None:
        """Handle a message to the home of a job: a line `reserved` a slot for it, a slot is `spare`, an attempt failed
        (`again`), or the job is `done`."""
        match kind:
            case "reserved":
                await self._slot_reserved(job_id, node_id)
            case "spare":
                await self._release_unused(job_id, node_id)
            case "again":
                await self._retry(job_id, node_id)
            case "done":
                await self._end_here(job_id)

    async def _slot_reserved(self, job_id: str, node_id: str) -> None:
        """Use a slot that a line reserved for the job, unless the job has ended or has another slot."""
        job, node = self.jobs.get(job_id), self._view.get(node_id)
        if job is None or not job.is_home or job.node_id or job.next_node_id or node is None:
            await self._release_unused(job_id, node_id)
            if job and job.is_home and not job.node_id and not job.next_node_id:
                await self._schedule(job)
            return
        job.in_line_since, job.next_node_id = 0.0, node_id
        try:
            # Prolong the reservation to this job's hold time, or make it again if it was released.
            if await self._reserve(job, node_id, node.slots):
                await self._send(job, node_id)
                return
        finally:
            job.next_node_id = ""
        await self._wait_in_line(job)

    async def _release_unused(self, job_id: str, node_id: str) -> None:
        """Free the slot that is reserved for the job at this node and offer it to other jobs, unless the job is at the
        node or is being sent to it."""
        job = self.jobs.get(job_id)
        if job is None or node_id not in {job.node_id, job.next_node_id}:
            await self._slots.release(node_id, job_id)
            await self._lines.slot_freed(node_id)

    async def _send(self, job: HomeJob, node_id: str) -> None:
        now, attempt = time.monotonic(), job.attempt
        remaining_s = job.deadline - now
        node = self._view.get(node_id)
        token_id = node.token_id if node else ""
        if (
            job.id not in self.jobs
            or remaining_s <= 0
            or not await self._states.dispatch(job.id, attempt, node_id, token_id)
        ):
            await self._slots.release(node_id, job.id)
            job.checked_at = 0.0  # makes the next `check` compare the job with Redis
            return
        if job.id not in self.jobs or job.attempt != attempt:  # Redis took so long that the attempt is over
            if job.node_id != node_id:
                await self._slots.release(node_id, job.id)
            return
        attempt_s = min(self._attempt_s(job), remaining_s)
        job.node_id, job.node_token, job.in_line_since = node_id, token_id, 0.0
        job.attempt_until = time.monotonic() + attempt_s
        job.checked_at, job.unseen_since = now, 0.0
        if job.attempt == 1:
            self._dispatched.observe(now - job.started)
        await self._deliver(job)

    async def _deliver(self, job: HomeJob) -> None:
        """Send the assignment to the job's node. If it reaches no owner of the node, `check` repeats this."""
        job.undelivered, remaining_s = True, job.attempt_until - time.monotonic()
        job.undelivered = not await self._delivery.assign(job, int(remaining_s * 1000))

    async def _retry(self, job_id: str, node_id: str) -> None:
        """Note that the job failed at this node, and schedule the attempt that Redis has started since."""
        job = self.jobs.get(job_id)
        if job is None:
            return
        job.failed_nodes |= {node_id} if node_id else set()
        await self._sync(job, await self._states.get(job_id))

    async def _give_up_attempt(self, job: HomeJob, error: JobError) -> None:
        """End the current attempt, and try another node. After the last attempt the job fails with `error`."""
        node_id = job.node_id
        retried = await self._states.retry(job.id, job.attempt)
        if retried is None:
            stored = await self._states.get(job.id)
            if stored and stored.state in WITH_NODE and stored.attempt == job.attempt:
                await self._fail(job, error)
            else:
                await self._sync(job, stored)
            return
        log.info("job.retried", job=job.id, attempt=retried.attempt, reason=error.code)
        await self._slots.release(node_id, job.id)
        await self._slots.cool_down(node_id)
        await self._delivery.cancel(node_id, job.id, job.attempt, error.code)
        await self._retry(job.id, node_id)

    async def _fail(self, job: HomeJob, error: JobError) -> None:
        if not await self.end(job.id, error):
            await self._sync(job, await self._states.get(job.id))

    async def end(self, job_id: str, error: JobError) -> bool:
        """End a job, of this or another home, with an error of the gateway, and send that to the waiting sessions.
        False: the job is done or unknown."""
        ended = await self._states.end(job_id, error)
        if ended is None:
            return False
        finished, packed = ended
        job = finished.job
        if job.node_id:
            await self._delivery.cancel(job.node_id, job_id, job.attempt, error.code)
        self.forget(job_id)
        await self._delivery.result(finished, packed)
        self._spawn(self.settle(job))
        return True

    async def cancel(self, job_id: str, message: str = "cancelled") -> None:
        """End a job with the error `cancelled` and this message; harmless if it is done or unknown."""
        await self.end(job_id, JobError(code=CANCELLED, message=message, kind="cancelled"))

    async def settle(self, job: Job) -> None:
        """Free the slot of a finished job and offer it to other jobs; delete the job's payload and waiters in Redis."""
        if job.node_id:
            await self._slots.release(job.node_id, job.job_id)
        await self._states.release(job.job_id)
        if job.node_id:
            await self._lines.slot_freed(job.node_id)

    async def _end_here(self, job_id: str) -> None:
        """Forget a job that another instance has finished, after answering the local sessions that wait for it."""
        job = self.jobs.get(job_id)
        if job and self._delivery.local_waiters(job_id):
            await self._sync(job, await self._states.get(job_id))
        self.forget(job_id)

    async def check(self) -> None:
        """Check all followed jobs once: fail those past their deadline, retry overdue attempts and those of lost nodes,
        adopt those of dead homes, and compare others with Redis at intervals."""
        jobs = list(self.jobs.values())
        for begin in range(0, len(jobs), _CHUNK):
            chunk = jobs[begin : begin + _CHUNK]
            checks = (self._check(job) if job.is_home else self._check_foreign(job) for job in chunk)
            for failure in await asyncio.gather(*checks, return_exceptions=True):
                if failure:
                    raise failure

    def forget(self, job_id: str) -> None:
        """Stop following a job, and take it out of line. Redis keeps the job."""
        job = self.jobs.pop(job_id, None)
        if job and job.in_line_since:
            self._spawn(self._waiting.leave(job.need.pool, job_id))

    async def _check(self, job: HomeJob) -> None:
        now = time.monotonic()
        if now > job.deadline:
            await self._fail(job, JobError(code=TIMED_OUT, message=self._late_reason(job), kind="transient"))
        elif job.node_id and now > job.attempt_until:
            message = f"node {job.node_id} did not answer in {self._attempt_s(job):g} s"
            await self._give_up_attempt(job, JobError(code=TIMED_OUT, message=message))
        elif job.node_id and self._has_lost_its_node(job, now):
            message = f"node {job.node_id} disconnected during the last attempt"
            await self._give_up_attempt(job, JobError(code=NODE_LOST, message=message))
        elif now - job.checked_at > _SYNC_S:
            await self._sync(job, await self._states.get(job.id))
        elif job.node_id and job.undelivered:
            await self._deliver(job)
        if job.id in self.jobs and not job.node_id and now - job.in_line_since > _IN_LINE_S:
            await self._schedule(job)

    def _has_lost_its_node(self, job: HomeJob, now: float) -> bool:
        node = self._view.get(job.node_id)
        if node and node.token_id == job.node_token:
            job.unseen_since = 0.0
            return False
        job.unseen_since = job.unseen_since or now
        return now - job.unseen_since > self._settings.heartbeat_ms / 1000

    def _late_reason(self, job: HomeJob) -> str:
        if job.node_id:
            return f"node {job.node_id} was still at work at the deadline"
        if not self._view.offered(job.need):
            return f"no node offered {job.need.capability} {job.need.model}".rstrip() + " in time"
        return "no node had a free slot in time"

    async def _check_foreign(self, job: HomeJob) -> None:
        now = time.monotonic()
        if now - job.checked_at < 1.0:
            return
        stored = await self._states.get(job.id)
        if stored is None or stored.state in DONE or now > job.deadline + 5:
            await self._sync(job, stored)
        elif not await self._instances.is_alive(stored.home) and await self._states.adopt(
            job.id, stored.home, self._home
        ):
            await self.adopt(job, stored)
        job.checked_at = now

    async def adopt(self, job: HomeJob, stored: Job) -> None:
        """Schedule a job of a dead home from now on. A node that has the job keeps it."""
        log.info("job.adopted", job=job.id, state=str(stored.state))
        job.job, job.is_home, job.attempt = stored, True, stored.attempt
        if stored.state is JobState.CREATED:
            await self.take(job)
            return
        self.jobs[job.id] = job
        await self._resume(job, stored)

    async def _resume(self, job: HomeJob, stored: Job) -> None:
        """Follow the attempt of the node that has the job. Repeats the assignment if the node has not acknowledged."""
        remaining_ms = stored.attempt_until_ms - await self._now_ms()
        job.node_id, job.node_token, job.in_line_since = stored.node_id, stored.node_token, 0.0
        job.attempt_until = time.monotonic() + remaining_ms / 1000
        if stored.state is JobState.DISPATCHED:
            await self._deliver(job)

    async def _sync(self, job: HomeJob, stored: Job | None) -> None:
        """Act on a job's state in Redis, in case a message was lost: it may be done, at a new attempt, or unknown."""
        job.checked_at = time.monotonic()
        if stored is None:
            self.forget(job.id)
            for link in self._delivery.local_waiters(job.id):  # Redis has lost the other waiters
                link.fail(job.request.request_id, STATE_GONE, job.id)
            if job.node_id:
                await self._delivery.cancel(job.node_id, job.id, job.attempt, STATE_LOST)
        elif stored.state in DONE:
            await self._delivery.stored_result(stored)
            self.forget(job.id)  # last, so that the next check repeats this if Redis is away
        elif job.is_home and stored.state is JobState.CREATED and stored.attempt > job.attempt:
            job.job, job.attempt, job.node_id, job.attempt_until = stored, stored.attempt, "", 0.0
            await self._schedule(job)
        elif job.is_home and stored.state in WITH_NODE and stored.attempt == job.attempt and not job.node_id:
            await self._resume(job, stored)
