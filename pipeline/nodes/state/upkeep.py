"""Upkeep: beat and the first living instance finish the work that dead instances left, under a lease. Each step is
harmless to repeat."""

from dataclasses import dataclass
from uuid import uuid4

from pipeline.nodes.job import DONE, WITH_NODE, Job, JobState
from pipeline.nodes.protocol import TIMED_OUT, JobError
from pipeline.nodes.state.dlq import scan_dlq
from pipeline.nodes.state.inbox import Inbox
from pipeline.nodes.state.instances import Instances
from pipeline.nodes.state.jobs import Jobs
from pipeline.nodes.state.requests import Requests
from pipeline.nodes.state.slots import Reservation, Slots
from pipeline.nodes.state.snapshots import Snapshots
from pipeline.nodes.state.store import Store

LEASE_MS = 60_000
GRACE_MS = 10_000
"""How long a reservation may exist before its job is dispatched, and a result may wait for its home to send it."""
LATE_MS = 5000
"""How long after the deadline the home may take to end a job."""


@dataclass(frozen=True)
class UpkeepCounts:
    """The counts of one run of the upkeep."""

    dlq_moved: int = 0
    stale_nodes: int = 0
    """Nodes removed from the lists."""
    orphans: int = 0
    """Reservations freed because no job needed them."""
    overdue: int = 0
    """Jobs ended because their homes had not ended them."""
    handed_out: int = 0
    """Results sent because their homes had not sent them."""
    closed: int = 0
    """Empty inboxes of dead instances, removed."""


async def tend(store: Store) -> UpkeepCounts:
    """Run the upkeep once and return its counts; all are 0 if another process has the lease for it."""
    holder = uuid4().hex
    if not await store.run("request_take_over", [store.keys.upkeep], [holder, LEASE_MS]):
        return UpkeepCounts()
    try:
        counts = await _Upkeep(store).tend()
        if counts.dlq_moved:
            await store.do("INCRBY", store.keys.dlq_moved, counts.dlq_moved)
        return counts
    finally:
        await store.run("delete_own", [store.keys.upkeep], [holder])


class _Upkeep:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._jobs, self._slots, self._instances = Jobs(store), Slots(store), Instances(store)
        self._inbox = Inbox(store, "upkeep")

    async def tend(self) -> UpkeepCounts:
        instances = await self._instances.all()
        moved = sum([await scan_dlq(self._store, instance.instance_id) for instance in instances])
        dead = [instance.instance_id for instance in instances if not instance.alive]
        closed = sum([await self._inbox.close_dead(instance_id) for instance_id in dead])
        orphans = await self._release_orphans()
        overdue, handed_out = await self._end_jobs()
        await self._jobs.prune()
        # Last, because `_release_orphans` needs the list of nodes.
        stale = await Snapshots(self._store).clean()
        return UpkeepCounts(moved, stale, orphans, overdue, handed_out, closed)

    async def _release_orphans(self) -> int:
        names = [name.decode() for name in await self._store.do("SMEMBERS", self._store.keys.nodes)]
        before_ms = await self._store.now_ms() - GRACE_MS
        old = [held for held in await self._slots.reservations(names) if held.since_ms < before_ms]
        jobs = await self._jobs.get_all([held.job_id for held in old])
        orphans = [held for held, job in zip(old, jobs, strict=True) if not _is_needed(held, job)]
        released = [await self._slots.release(held.node_id, held.job_id, since_ms=held.since_ms) for held in orphans]
        return sum(released)

    async def _end_jobs(self) -> tuple[int, int]:
        now_ms = await self._store.now_ms()
        live = await self._jobs.live()
        overdue = handed_out = 0
        for job in await self._jobs.get_all(live):
            if job and job.state in DONE and job.finished_ms < now_ms - GRACE_MS:
                handed_out += await self._hand_out(job)
            elif job and job.state not in DONE and job.deadline_ms < now_ms - LATE_MS:
                overdue += await self._end(job)
        return overdue, handed_out

    async def _end(self, job: Job) -> bool:
        error = JobError(code=TIMED_OUT, message="the job's deadline has passed, and its instance is dead")
        ended = await self._jobs.end(job.job_id, error)
        if ended is None:
            return False
        if job.node_id:
            await self._slots.release(job.node_id, job.job_id)
        await Requests(self._store).forget(job.request_key, job.job_id)
        await self._hand_out(ended[0].job)
        return True

    async def _hand_out(self, job: Job) -> bool:
        """Notify the instances of all waiting sessions, and release the job. Returns whether the job was finished and
        not yet released.

        A session ignores a result that it has already.
        """
        for session_id in await self._jobs.waiters(job.job_id):
            if owner := await self._instances.sessions.owner(session_id):
                body = {"session_id": session_id, "request_key": job.request_key, "job_id": job.job_id}
                await self._inbox.send(owner, "result", body)
        was_due = job.state is JobState.FINISHED
        await self._jobs.release(job.job_id)
        return was_due


def _is_needed(reservation: Reservation, job: Job | None) -> bool:
    return job is not None and job.state in WITH_NODE and job.node_id == reservation.node_id
