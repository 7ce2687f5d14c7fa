"""The jobs that this instance is home to: who does them, and what happens when that fails.

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
from pipeline.nodes.gateway.lines import TRIED, Lines
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
"""A node that was found full so lately is not asked again."""
_CHECKED = 200
"""Jobs that are looked at together."""
_IN_LINE_S, _LOOK_S = 2.0, 2.0
"""How often a job that waits is put in line anew, and how often Redis is asked whether it still knows a job."""
STATE_GONE = JobError(code=STATE_LOST, message="Redis lost what it knew of this job: ask again")


class Dispatch:
    """Schedules jobs until each has ended."""

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
        """`now_ms`: the time by Redis. `dispatched`: how long requests waited for their nodes."""
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
        """Schedule a job that was just created or adopted."""
        self.jobs[job.id] = job
        await self._schedule(job)

    async def _schedule(self, job: HomeJob) -> None:
        """Give the job to a node, or put it in line. Whatever is in line comes first."""
        need = job.need
        job.in_line = time.monotonic()  # from now on, `check` leaves it alone for a while
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
        left_out = frozenset(job.failed)
        for node in self._view.candidates(job.need, time.monotonic() - _BUSY_S, left_out)[:TRIED]:
            if await self._reserve(job, node.node_id, node.slots):
                await self._send(job, node.node_id)
                return True
        return False

    async def _reserve(self, job: HomeJob, node_id: str, slots: int) -> bool:
        reserved = await self._lines.reserve(job.id, node_id, slots, job.need.model, self._hold_ms(job))
        return reserved is Reserved.HELD

    def _hold_ms(self, job: HomeJob) -> int:
        # Longer than the attempt, so that no slot counts as free while its node may still be at work.
        left_ms = min(job.until - time.monotonic(), self._attempt_s(job)) * 1000
        return max(1000, int(left_ms)) + 10_000

    def _attempt_s(self, job: HomeJob) -> float:
        return (job.request.attempt_timeout_ms or self._settings.attempt_timeout_ms) / 1000

    async def _wait_in_line(self, job: HomeJob) -> None:
        now = time.monotonic()
        if job.id not in self.jobs:
            return
        job.in_line, ttl_ms = now, max(1, int((job.until - now) * 1000))
        await self._waiting.enter(job.need.pool, job.id, job.job.requester, self._home, ttl_ms)
        if job.id not in self.jobs:  # it ended meanwhile
            await self._waiting.leave(job.need.pool, job.id)
        self._lines.pump(job.need.pool)

    async def hear(self, kind: str, job_id: str, node_id: str) -> None:
        """What the home of a job is told."""
        match kind:
            case "reserved":
                await self._slot_reserved(job_id, node_id)
            case "spare":
                await self._slot_spared(job_id, node_id)
            case "again":
                await self._given_back(job_id, node_id)
            case "done":
                await self._ended(job_id)

    async def _slot_reserved(self, job_id: str, node_id: str) -> None:
        """A slot was reserved for a job in line. The home decides: it may have ended, or have another slot already."""
        job, node = self.jobs.get(job_id), self._view.get(node_id)
        if job is None or not job.ours or job.node_id or job.next_node_id or node is None:
            await self._slot_spared(job_id, node_id)
            if job and job.ours and not job.node_id and not job.next_node_id:
                await self._schedule(job)
            return
        job.in_line, job.next_node_id = 0.0, node_id
        try:
            # Again, for as long as this job needs it; whoever reserved it may also have been the second to do so.
            if await self._reserve(job, node_id, node.slots):
                await self._send(job, node_id)
                return
        finally:
            job.next_node_id = ""
        await self._wait_in_line(job)

    async def _slot_spared(self, job_id: str, node_id: str) -> None:
        """Give a reservation back unless it is the one that the job uses, or is about to."""
        job = self.jobs.get(job_id)
        if job is None or node_id not in {job.node_id, job.next_node_id}:
            await self._slots.release(node_id, job_id)
            await self._lines.slot_freed(node_id)

    async def _send(self, job: HomeJob, node_id: str) -> None:
        now, attempt = time.monotonic(), job.attempt
        left_s = job.until - now
        node = self._view.get(node_id)
        token_id = node.token_id if node else ""
        if (
            job.id not in self.jobs
            or left_s <= 0
            or not await self._states.dispatch(job.id, attempt, node_id, token_id)
        ):
            await self._slots.release(node_id, job.id)
            job.looked = 0.0  # the next look says what has become of it
            return
        if job.id not in self.jobs or job.attempt != attempt:  # Redis took so long that the attempt is over
            if job.node_id != node_id:
                await self._slots.release(node_id, job.id)
            return
        attempt_s = min(self._attempt_s(job), left_s)
        job.node_id, job.node_token, job.in_line = node_id, token_id, 0.0
        job.attempt_until = time.monotonic() + attempt_s
        job.looked, job.unseen = now, 0.0
        if job.attempt == 1:
            self._dispatched.observe(now - job.begun)
        await self._tell(job)

    async def _tell(self, job: HomeJob) -> None:
        """Have the node told of its job; `check` does it again while there is no way to it."""
        job.untold, left_s = True, job.attempt_until - time.monotonic()
        job.untold = not await self._delivery.assign(job, int(left_s * 1000))

    async def _given_back(self, job_id: str, node_id: str) -> None:
        """A node gave the job back, and its attempt was counted: find another, or fail it."""
        job = self.jobs.get(job_id)
        if job is None:
            return
        job.failed |= {node_id} if node_id else set()
        await self._look(job, await self._states.get(job_id))

    async def _give_up_attempt(self, job: HomeJob, error: JobError) -> None:
        """The node that has the job counts as lost for it: try another, or fail with this if it had tries enough."""
        node_id = job.node_id
        retried = await self._states.retry(job.id, job.attempt)
        if retried is None:
            found = await self._states.get(job.id)
            if found and found.state in WITH_NODE and found.attempt == job.attempt:
                await self._fail(job, error)
            else:
                await self._look(job, found)
            return
        log.info("job.retried", job=job.id, attempt=retried.attempt, reason=error.code)
        await self._slots.release(node_id, job.id)
        await self._slots.cool_down(node_id)
        await self._delivery.cancel(node_id, job.id, job.attempt, error.code)
        await self._given_back(job.id, node_id)

    async def _fail(self, job: HomeJob, error: JobError) -> None:
        """End the job with an error of the gateway's own."""
        if not await self.end(job.id, error):
            await self._look(job, await self._states.get(job.id))

    async def end(self, job_id: str, error: JobError) -> bool:
        """End any job, this instance's or not; whether it had not ended before."""
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
        """End a job that nobody wants any more."""
        await self.end(job_id, JobError(code=CANCELLED, message=message, kind="cancelled"))

    async def settle(self, job: Job) -> None:
        """What follows a result: its slot is free."""
        if job.node_id:
            await self._slots.release(job.node_id, job.job_id)
        await self._states.release(job.job_id)
        if job.node_id:
            await self._lines.slot_freed(job.node_id)

    async def _ended(self, job_id: str) -> None:
        """A job of this home has ended, and nobody here was found who waits for it: look again, then forget it."""
        job = self.jobs.get(job_id)
        if job and self._delivery.waiting_here(job_id):
            await self._look(job, await self._states.get(job_id))
        self.forget(job_id)

    async def check(self) -> None:
        """What time alone brings about: deadlines, lost nodes, lost homes, a Redis that was emptied."""
        jobs = list(self.jobs.values())
        for begin in range(0, len(jobs), _CHECKED):
            some = jobs[begin : begin + _CHECKED]
            checks = (self._check(job) if job.ours else self._check_foreign(job) for job in some)
            for failure in await asyncio.gather(*checks, return_exceptions=True):
                if failure:
                    raise failure

    def forget(self, job_id: str) -> None:
        """A job has ended: nothing is to be done for it any more."""
        job = self.jobs.pop(job_id, None)
        if job and job.in_line:
            self._spawn(self._waiting.leave(job.need.pool, job_id))

    async def _check(self, job: HomeJob) -> None:
        now = time.monotonic()
        if now > job.until:
            await self._fail(job, JobError(code=TIMED_OUT, message=self._why_late(job), kind="transient"))
        elif job.node_id and now > job.attempt_until:
            message = f"node {job.node_id} did not answer in {self._attempt_s(job):g} s"
            await self._give_up_attempt(job, JobError(code=TIMED_OUT, message=message))
        elif job.node_id and self._is_gone(job, now):
            message = f"node {job.node_id} has gone, and so had those before it"
            await self._give_up_attempt(job, JobError(code=NODE_LOST, message=message))
        elif now - job.looked > _LOOK_S:
            await self._look(job, await self._states.get(job.id))
        elif job.node_id and job.untold:
            await self._tell(job)
        if job.id in self.jobs and not job.node_id and now - job.in_line > _IN_LINE_S:
            await self._schedule(job)

    def _is_gone(self, job: HomeJob, now: float) -> bool:
        node = self._view.get(job.node_id)
        if node and node.token_id == job.node_token:
            job.unseen = 0.0
            return False
        job.unseen = job.unseen or now
        return now - job.unseen > self._settings.heartbeat_ms / 1000

    def _why_late(self, job: HomeJob) -> str:
        if job.node_id:
            return f"node {job.node_id} was at work when the time was over"
        if not self._view.offered(job.need):
            return f"no node offered {job.need.capability} {job.need.model}".rstrip() + " in time"
        return "no node had a free slot in time"

    async def _check_foreign(self, job: HomeJob) -> None:
        now = time.monotonic()
        if now - job.looked < 1.0:
            return
        found = await self._states.get(job.id)
        if found is None or found.state in DONE or now > job.until + 5:
            await self._look(job, found)
        elif not await self._instances.is_alive(found.home) and await self._states.adopt(
            job.id, found.home, self._home
        ):
            await self.adopt(job, found)
        job.looked = now

    async def adopt(self, job: HomeJob, found: Job) -> None:
        """This instance schedules the job from now on. A node that is at work on it stays so."""
        log.info("job.adopted", job=job.id, state=str(found.state))
        job.job, job.ours, job.attempt = found, True, found.attempt
        if found.state is JobState.CREATED:
            await self.take(job)
            return
        self.jobs[job.id] = job
        await self._resume(job, found)

    async def _resume(self, job: HomeJob, found: Job) -> None:
        """A node has the job, as Redis says. If it never said so, it may not have been told: once more is no harm."""
        left_ms = found.attempt_until_ms - await self._now_ms()
        job.node_id, job.node_token, job.in_line = found.node_id, found.node_token, 0.0
        job.attempt_until = time.monotonic() + left_ms / 1000
        if found.state is JobState.DISPATCHED:
            await self._tell(job)

    async def _look(self, job: HomeJob, found: Job | None) -> None:
        """Act on what Redis says of a job, in case nobody told us: it has ended, was given back, or is unknown."""
        job.looked = time.monotonic()
        if found is None:
            self.forget(job.id)
            for link in self._delivery.waiting_here(job.id):  # where Redis is empty, nobody else can be found
                link.fail(job.request.request_id, STATE_GONE, job.id)
            if job.node_id:
                await self._delivery.cancel(job.node_id, job.id, job.attempt, STATE_LOST)
        elif found.state in DONE:
            await self._delivery.from_redis(found)
            self.forget(job.id)  # afterwards: should Redis be away, the next look does it
        elif job.ours and found.state is JobState.CREATED and found.attempt > job.attempt:
            job.job, job.attempt, job.node_id, job.attempt_until = found, found.attempt, "", 0.0
            await self._schedule(job)
        elif job.ours and found.state in WITH_NODE and found.attempt == job.attempt and not job.node_id:
            await self._resume(job, found)
