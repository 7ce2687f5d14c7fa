"""The jobs that this instance is home to: who does them, and what happens when that fails. Source 004, "Job FSM"."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from pipeline.nodes.gateway.lines import TRIED, Lines
from pipeline.nodes.gateway.view import Need
from pipeline.nodes.job import Job, JobState
from pipeline.nodes.parcel import Parcel
from pipeline.nodes.protocol import (
    CANCELLED,
    NO_NODE,
    NODE_LOST,
    STATE_LOST,
    TIMED_OUT,
    Attachment,
    JobAssign,
    JobError,
    JobRequest,
    NodeCancel,
)
from pipeline.nodes.state.slots import Reserved

if TYPE_CHECKING:
    from pipeline.nodes.gateway.instance import Instance

log = structlog.get_logger(__name__)
_BUSY_S = 0.2
"""A node that was found full so lately is not asked again."""
_CHECKED = 200
"""Jobs that are looked at together."""
_AGAIN_S, _LOOK_S = 2.0, 2.0
"""How often a job that waits is put in line anew, and how often Redis is asked whether it still knows a job."""
UNDER_WAY = frozenset({JobState.DISPATCHED, JobState.ACCEPTED, JobState.RUNNING})
ENDED = frozenset({JobState.FINISHED, JobState.RELEASED})


@dataclass(eq=False)
class HomeJob:
    """A job with what is needed to give it to a node, again if need be."""

    job: Job
    request: JobRequest
    parts: Sequence[bytes]
    begun: float
    """By the clock of this process, as all times here."""
    until: float
    ours: bool = True
    """Whether this instance schedules it; else it waits here for the one that does, and takes over if that dies."""
    attempt: int = 1
    node_id: str = ""
    """The node that has it."""
    node_token: str = ""
    """The token of the node's connection. With another token, it is another node."""
    next_node_id: str = ""
    """The node that is about to be given it."""
    untold: bool = False
    """There was no way to tell the node: Redis was away, or has forgotten where it is."""
    attempt_until: float = 0.0
    failed: set[str] = field(default_factory=set)
    """Nodes that dropped it."""
    in_line: float = 0.0
    """When it was last put in line; 0: it is not waiting."""
    looked: float = 0.0
    unseen: float = 0.0
    """Since when its node is not seen; 0: it is there."""

    @property
    def id(self) -> str:
        return self.job.job_id

    @property
    def need(self) -> Need:
        return Need(self.request.capability, self.request.model)

    def packed(self) -> bytes:
        """What a node is given, as it goes through Redis."""
        attachments = [one.model_dump() for one in self.request.attachments]
        head = {"capability": self.request.capability, "model": self.request.model, "body": self.request.body}
        return Parcel({**head, "attachments": attachments}, self.parts).pack()


def assignment(job_id: str, attempt: int, timeout_ms: int, parcel: Parcel) -> JobAssign:
    """The message to a node for what `HomeJob.packed` held."""
    head = parcel.head
    return JobAssign(
        job_id=job_id,
        attempt=attempt,
        capability=head["capability"],
        model=head["model"],
        body=head["body"],
        timeout_ms=max(1, timeout_ms),
        attachments=tuple(Attachment(**one) for one in head["attachments"]),
    )


class Dispatch:
    """Schedules jobs until each has ended."""

    def __init__(self, instance: "Instance") -> None:
        self._at = instance
        self.jobs: dict[str, HomeJob] = {}
        self.lines = Lines(instance)

    async def take(self, job: HomeJob) -> None:
        """Schedule a job that was just created or adopted."""
        self.jobs[job.id] = job
        await self.schedule(job)

    async def schedule(self, job: HomeJob) -> None:
        """Give the job to a node, or put it in line. Whatever is in line comes first."""
        at, need = self._at, job.need
        job.in_line = time.monotonic()  # from now on, `check` leaves it alone for a while
        if not at.view.offered(need) and job.request.if_no_node == "error":
            await at.refresh_view()
            if not at.view.offered(need):
                message = f"no node offers {need.capability}" + (f" with model {need.model}" if need.model else "")
                await self.fail(job, JobError(code=NO_NODE, message=message, kind="rate_limited", retry_after_s=5))
                return
        if not await at.state.waiting.heads(need.pool, 1) and await self._reserve_and_send(job):
            return
        await self._wait_in_line(job)

    async def _reserve_and_send(self, job: HomeJob) -> bool:
        at = self._at
        left_out = frozenset(job.failed)
        for node in at.view.candidates(job.need, time.monotonic() - _BUSY_S, left_out)[:TRIED]:
            if await self._reserve(job, node.node_id, node.slots):
                await self._send(job, node.node_id)
                return True
        return False

    async def _reserve(self, job: HomeJob, node_id: str, slots: int) -> bool:
        reserved = await self.lines.reserve(job.id, node_id, slots, job.need.model, self._hold_ms(job))
        return reserved is Reserved.HELD

    def _hold_ms(self, job: HomeJob) -> int:
        # Longer than the attempt, so that no slot counts as free while its node may still be at work.
        left_ms = min(job.until - time.monotonic(), self._attempt_s(job)) * 1000
        return max(1000, int(left_ms)) + 10_000

    def _attempt_s(self, job: HomeJob) -> float:
        return (job.request.attempt_timeout_ms or self._at.settings.attempt_timeout_ms) / 1000

    async def _wait_in_line(self, job: HomeJob) -> None:
        at, now = self._at, time.monotonic()
        if job.id not in self.jobs:
            return
        job.in_line, ttl_ms = now, max(1, int((job.until - now) * 1000))
        await at.state.waiting.enter(job.need.pool, job.id, job.job.requester, at.home, ttl_ms)
        if job.id not in self.jobs:  # it ended meanwhile
            await at.state.waiting.leave(job.need.pool, job.id)
        self.lines.pump(job.need.pool)

    async def reserved(self, job_id: str, node_id: str) -> None:
        """A slot was reserved for a job in line. The home decides: it may have ended, or have another slot already."""
        job, node = self.jobs.get(job_id), self._at.view.get(node_id)
        if job is None or not job.ours or job.node_id or job.next_node_id or node is None:
            await self.spare(job_id, node_id)
            if job and job.ours and not job.node_id and not job.next_node_id:
                await self.schedule(job)
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

    async def spare(self, job_id: str, node_id: str) -> None:
        """Give a reservation back unless it is the one that the job uses, or is about to."""
        job = self.jobs.get(job_id)
        if job is None or node_id not in {job.node_id, job.next_node_id}:
            await self._at.state.slots.release(node_id, job_id)
            await self.lines.freed(node_id)

    async def _send(self, job: HomeJob, node_id: str) -> None:
        at, now, attempt = self._at, time.monotonic(), job.attempt
        left_s = job.until - now
        node = at.view.get(node_id)
        token_id = node.token_id if node else ""
        if (
            job.id not in self.jobs
            or left_s <= 0
            or not await at.state.jobs.dispatched(job.id, attempt, node_id, token_id)
        ):
            await at.state.slots.release(node_id, job.id)
            job.looked = 0.0  # the next look says what has become of it
            return
        if job.id not in self.jobs or job.attempt != attempt:  # Redis took so long that the attempt is over
            if job.node_id != node_id:
                await at.state.slots.release(node_id, job.id)
            return
        attempt_s = min(self._attempt_s(job), left_s)
        job.node_id, job.node_token, job.in_line = node_id, token_id, 0.0
        job.attempt_until = time.monotonic() + attempt_s
        job.looked, job.unseen = now, 0.0
        if job.attempt == 1:
            at.dispatched.observe(now - job.begun)
        await self._tell(job)

    async def _tell(self, job: HomeJob) -> None:
        """Have the node told of its job; `check` does it again while there is no way to it."""
        job.untold, left_s = True, job.attempt_until - time.monotonic()
        job.untold = not await self._at.delivery.assign(job, job.node_id, int(left_s * 1000))

    async def again(self, job_id: str, node_id: str) -> None:
        """A node gave the job back, and its attempt was counted: find another, or fail it."""
        job = self.jobs.get(job_id)
        if job is None:
            return
        job.failed |= {node_id} if node_id else set()
        await self._look(job, await self._at.state.jobs.get(job_id))

    async def give_up_attempt(self, job: HomeJob, error: JobError) -> None:
        """The node that has the job counts as lost for it: try another, or fail with this if it had tries enough."""
        at, node_id = self._at, job.node_id
        retried = await at.state.jobs.retry(job.id, job.attempt)
        if retried is None:
            found = await at.state.jobs.get(job.id)
            if found and found.state in UNDER_WAY and found.attempt == job.attempt:
                await self.fail(job, error)
            else:
                await self._look(job, found)
            return
        log.info("job.retried", job=job.id, attempt=retried.attempt, reason=error.code)
        await at.state.slots.release(node_id, job.id)
        await at.state.slots.dropped(node_id)
        await at.delivery.to_node(node_id, NodeCancel(job_id=job.id, attempt=job.attempt, reason=error.code))
        await self.again(job.id, node_id)

    async def fail(self, job: HomeJob, error: JobError) -> None:
        """End the job with an error of the gateway's own."""
        if not await self.end(job.id, error):
            await self._look(job, await self._at.state.jobs.get(job.id))

    async def end(self, job_id: str, error: JobError) -> bool:
        """End any job, this instance's or not; whether it had not ended before."""
        at = self._at
        packed = Parcel({"error": error.model_dump(exclude_none=True)}).pack()
        outcome = "cancelled" if error.code == CANCELLED else "error"
        finished = await at.state.jobs.finish(job_id, None, "", packed, outcome, error.code, error.message)
        if finished is None:
            return False
        job = finished.job
        if job.node_id:
            cancel = NodeCancel(job_id=job_id, attempt=job.attempt, reason=error.code)
            await at.delivery.to_node(job.node_id, cancel)
        await at.delivery.result(finished, packed)
        at.spawn(at.settle(finished))
        return True

    async def done(self, job_id: str) -> None:
        """A job of this home has ended, and nobody here was found who waits for it: look again, then forget it."""
        job = self.jobs.get(job_id)
        if job and any(link.waits_for(job_id) for link in self._at.sessions.values()):
            await self._look(job, await self._at.state.jobs.get(job_id))
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
            self._at.spawn(self._at.state.waiting.leave(job.need.pool, job_id))

    async def _check(self, job: HomeJob) -> None:
        now = time.monotonic()
        if now > job.until:
            await self.fail(job, JobError(code=TIMED_OUT, message=self._why_late(job), kind="transient"))
        elif job.node_id and now > job.attempt_until:
            message = f"node {job.node_id} did not answer in {self._attempt_s(job):g} s"
            await self.give_up_attempt(job, JobError(code=TIMED_OUT, message=message))
        elif job.node_id and self._is_gone(job, now):
            message = f"node {job.node_id} has gone, and so had those before it"
            await self.give_up_attempt(job, JobError(code=NODE_LOST, message=message))
        elif now - job.looked > _LOOK_S:
            await self._look(job, await self._at.state.jobs.get(job.id))
        elif job.node_id and job.untold:
            await self._tell(job)
        if job.id in self.jobs and not job.node_id and now - job.in_line > _AGAIN_S:
            await self.schedule(job)

    def _is_gone(self, job: HomeJob, now: float) -> bool:
        node = self._at.view.get(job.node_id)
        if node and node.token_id == job.node_token:
            job.unseen = 0.0
            return False
        job.unseen = job.unseen or now
        return now - job.unseen > self._at.settings.heartbeat_ms / 1000

    def _why_late(self, job: HomeJob) -> str:
        if job.node_id:
            return f"node {job.node_id} was at work when the time was over"
        if not self._at.view.offered(job.need):
            return f"no node offered {job.need.capability} {job.need.model}".rstrip() + " in time"
        return "no node had a free slot in time"

    async def _check_foreign(self, job: HomeJob) -> None:
        at, now = self._at, time.monotonic()
        if now - job.looked < 1.0:
            return
        found = await at.state.jobs.get(job.id)
        if found is None or found.state in ENDED or now > job.until + 5:
            await self._look(job, found)
        elif not await at.state.instances.is_alive(found.home) and await at.state.jobs.adopt(
            job.id, found.home, at.home
        ):
            await self.adopted(job, found)
        job.looked = now

    async def adopted(self, job: HomeJob, found: Job) -> None:
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
        left_ms = found.attempt_until_ms - await self._at.state.now_ms()
        job.node_id, job.node_token, job.in_line = found.node_id, found.node_token, 0.0
        job.attempt_until = time.monotonic() + left_ms / 1000
        if found.state is JobState.DISPATCHED:
            await self._tell(job)

    async def _look(self, job: HomeJob, found: Job | None) -> None:
        """Act on what Redis says of a job, in case nobody told us: it has ended, was given back, or is unknown."""
        job.looked = time.monotonic()
        if found is None:
            self.forget(job.id)
            error = JobError(code=STATE_LOST, message="Redis lost what it knew of this job: ask again")
            await self._at.delivery.to_sessions_here(job, error)
            if job.node_id:
                cancel = NodeCancel(job_id=job.id, attempt=job.attempt, reason=STATE_LOST)
                await self._at.delivery.to_node(job.node_id, cancel)
        elif found.state in ENDED:
            await self._at.delivery.from_redis(found)
            self.forget(job.id)  # afterwards: should Redis be away, the next look does it
        elif job.ours and found.state is JobState.CREATED and found.attempt > job.attempt:
            job.job, job.attempt, job.node_id, job.attempt_until = found, found.attempt, "", 0.0
            await self.schedule(job)
        elif job.ours and found.state in UNDER_WAY and found.attempt == job.attempt and not job.node_id:
            await self._resume(job, found)
