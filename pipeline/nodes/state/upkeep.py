"""What is left undone when an instance dies. Beat does it, under a lease; each part is harmless to repeat."""

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
"""How long a reservation may be ahead of its job, and a result may wait to be handed out by an instance."""
LATE_MS = 5000
"""How long after a job's deadline its home may take to end it."""


@dataclass(frozen=True)
class Tended:
    """How much there was to do."""

    dlq_moved: int = 0
    stale_nodes: int = 0
    """Nodes that were forgotten."""
    orphans: int = 0
    """Reservations for jobs that do not need them."""
    overdue: int = 0
    """Jobs that were ended for their homes."""
    handed_out: int = 0
    """Results that their homes had not handed out."""
    closed: int = 0
    """Inboxes of instances that are gone, and which were empty."""


async def tend(store: Store) -> Tended:
    """Do what is to be done. If another does it now: nothing."""
    holder = uuid4().hex
    if not await store.run("request_take_over", [store.keys.upkeep], [holder, LEASE_MS]):
        return Tended()
    try:
        return await _Upkeep(store).tend()
    finally:
        await store.run("delete_own", [store.keys.upkeep], [holder])


class _Upkeep:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._jobs, self._slots, self._instances = Jobs(store), Slots(store), Instances(store)
        self._inbox = Inbox(store, "upkeep")

    async def tend(self) -> Tended:
        instances = await self._instances.all()
        moved = sum([await scan_dlq(self._store, one.instance_id) for one in instances])
        gone = [one.instance_id for one in instances if not one.alive]
        closed = sum([await self._inbox.close_dead(instance_id) for instance_id in gone])
        orphans = await self._release_orphans()
        overdue, handed_out = await self._end_jobs()
        await self._jobs.prune()
        # Last: reservations are looked for by the list of nodes.
        stale = await Snapshots(self._store).clean()
        return Tended(moved, stale, orphans, overdue, handed_out, closed)

    async def _release_orphans(self) -> int:
        names = [name.decode() for name in await self._store.do("SMEMBERS", self._store.keys.nodes)]
        before_ms = await self._store.now_ms() - GRACE_MS
        old = [one for one in await self._slots.reservations(names) if one.since_ms < before_ms]
        jobs = await self._jobs.get_all([one.job_id for one in old])
        orphans = [one for one, job in zip(old, jobs, strict=True) if not _is_needed(one, job)]
        released = [await self._slots.release(one.node_id, one.job_id, since_ms=one.since_ms) for one in orphans]
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
        error = JobError(code=TIMED_OUT, message="its deadline has passed, and its instance has gone")
        ended = await self._jobs.end(job.job_id, error)
        if ended is None:
            return False
        if job.node_id:
            await self._slots.release(job.node_id, job.job_id)
        await Requests(self._store).forget(job.request_key, job.job_id)
        await self._hand_out(ended[0].job)
        return True

    async def _hand_out(self, job: Job) -> bool:
        """Tell the instances of all sessions that wait; whoever was told before passes over it."""
        for session_id in await self._jobs.waiters(job.job_id):
            if owner := await self._instances.sessions.owner(session_id):
                body = {"session_id": session_id, "request_key": job.request_key, "job_id": job.job_id}
                await self._inbox.send(owner, "result", body)
        was_due = job.state is JobState.FINISHED
        await self._jobs.released(job.job_id)
        return was_due


def _is_needed(reservation: Reservation, job: Job | None) -> bool:
    return job is not None and job.state in WITH_NODE and job.node_id == reservation.node_id
