"""Jobs: their machine in Redis, who waits for them, what they are given and what they gave.

Each operation may be repeated: with the same arguments it gives the same answer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from pipeline.nodes.job import DONE, JOB, WITH_NODE, Finished, Job, JobEvent, JobState, NewJob
from pipeline.nodes.parcel import Parcel
from pipeline.nodes.protocol import CANCELLED, JobError
from pipeline.nodes.state.sender import Part, call
from pipeline.nodes.state.store import Store

MOST_LISTED = 100_000
"""The list of jobs forgets the oldest beyond."""
_CHUNK = 200


def _words(states: Iterable[JobState]) -> str:
    return f",{','.join(states)},"


def _from(event: JobEvent) -> str:
    return _words(JOB.sources(event))


def _to(event: JobEvent) -> str:
    (target,) = set(JOB.sources(event).values())
    return target


_DONE = _words(DONE)
_FAR = {
    JobEvent.DISPATCH: _words(WITH_NODE),
    JobEvent.ACK: _words((JobState.ACCEPTED, JobState.RUNNING)),
    JobEvent.START: _words((JobState.RUNNING,)),
    JobEvent.PARTIAL: _words((JobState.RUNNING,)),
}
"""In which states an event has happened already."""


class Jobs:
    """All jobs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys
        self._lists = [store.keys.jobs, store.keys.jobs_live, store.keys.jobs_ends]

    async def create(self, new: NewJob, waiter: str = "", payload: bytes = b"") -> Job:
        """Create a job; if it is there, that one, unchanged. `waiter` waits for it unless it is done."""
        values = asdict(new)
        timeout_ms = values.pop("timeout_ms")
        fields = [part for pair in values.items() for part in pair]
        job_id, keys, kept_ms = new.job_id, self._keys, self._store.settings.result_ttl_ms
        arguments: list[Part] = [
            waiter,
            timeout_ms,
            kept_ms,
            payload,
            JobState.CREATED,
            _DONE,
            *fields,
        ]
        # Listed first: upkeep passes over what is listed and not there, but would never find the reverse.
        _, found = await self._store.batch(
            [
                call("job_list", self._lists, [job_id, timeout_ms, kept_ms, MOST_LISTED]),
                call("job_create", [keys.job(job_id), keys.job_waiters(job_id), keys.job_payload(job_id)], arguments),
            ],
            "job_create",
        )
        job = Job.read(found)
        assert job is not None
        return job

    async def join(self, job_id: str, session_id: str) -> tuple[Job | None, bytes | None]:
        """(the job or None if unknown, its result if it is done). If it is not, the session waits for it now."""
        keys = [self._keys.job(job_id), self._keys.job_waiters(job_id), self._keys.job_result(job_id)]
        found, result = await self._store.run("job_join", keys, [session_id, _DONE])
        return Job.read(found), result or None

    async def leave(self, job_id: str, session_id: str) -> int:
        """The session does not wait any more; how many do."""
        key = self._keys.job_waiters(job_id)
        _, left = await self._store.batch([("SREM", key, session_id), ("SCARD", key)], "job_leave")
        return int(left)

    async def dispatched(self, job_id: str, attempt: int, node_id: str, token_id: str = "") -> bool:
        """Give this attempt to the node until `attempt_until_ms`, if it connects with this token.

        False: the attempt was given to another node, or is over.
        """
        return await self._step("job_dispatch", job_id, JobEvent.DISPATCH, attempt, node_id, token_id)

    async def acknowledged(self, job_id: str, attempt: int, node_id: str) -> bool:
        """The node has the job. False: the attempt is over, or another node's."""
        return await self._step("job_step", job_id, JobEvent.ACK, attempt, node_id)

    async def started(self, job_id: str, attempt: int, node_id: str) -> bool:
        """The node works on the job. False: the attempt is over, or another node's."""
        return await self._step("job_step", job_id, JobEvent.START, attempt, node_id)

    async def partial(self, job_id: str, attempt: int, node_id: str) -> bool:
        """A piece of the result came. False: the attempt is over, or another node's."""
        return await self._step("job_step", job_id, JobEvent.PARTIAL, attempt, node_id)

    async def _step(self, script: str, job_id: str, event: JobEvent, attempt: int, node_id: str, *more: Part) -> bool:
        arguments: list[Part] = [attempt, node_id, _from(event), _to(event), _FAR[event], *more]
        return bool(await self._store.run(script, [self._keys.job(job_id)], arguments))

    async def finish(
        self,
        job_id: str,
        attempt: int | None,
        node_id: str,
        packed: bytes,
        outcome: str,
        code: str = "",
        error: str = "",
    ) -> Finished | None:
        """The job has its result, kept for `result_ttl_ms`. None: too late, another node's attempt, or unknown.

        `attempt` None: the gateway's own word, whatever nodes do. A repeated one has `again`.
        """
        keys = self._keys
        named = [keys.job(job_id), keys.job_waiters(job_id), keys.job_result(job_id), keys.job_payload(job_id)]
        event = JobEvent.FINISH
        machine: list[Part] = ["" if attempt is None else attempt, node_id, _from(event), _to(event), _words(WITH_NODE)]
        result: list[Part] = [packed, outcome, code, error, self._store.settings.result_ttl_ms]
        found, waiters, again = await self._store.run("job_finish", named, [*machine, *result])
        job = Job.read(found)
        if job is None:
            return None
        return Finished(job, frozenset(waiter.decode() for waiter in waiters), bool(again))

    async def end(self, job_id: str, error: JobError) -> tuple[Finished, bytes] | None:
        """The job ends with an error of the gateway's own, which is its result. None: it had ended, or is unknown."""
        packed = Parcel({"error": error.model_dump(exclude_none=True)}).pack()
        outcome = "cancelled" if error.code == CANCELLED else "error"
        finished = await self.finish(job_id, None, "", packed, outcome, error.code, error.message)
        return (finished, packed) if finished else None

    async def retry(self, job_id: str, from_attempt: int, *, free: bool = False) -> Job | None:
        """The job as it is afterwards: CREATED, one attempt further, `node_id` whose attempt is over.

        `free`: it may have one more attempt for that. None: it was not at this attempt any more, or this was the last
        one it may have.
        """
        event = JobEvent.RETRY
        arguments: list[Part] = [from_attempt, _from(event), _to(event), int(free)]
        return Job.read(await self._store.run("job_retry", [self._keys.job(job_id)], arguments))

    async def adopt(self, job_id: str, from_home: str, home: str) -> bool:
        """`home` schedules the job instead of `from_home`. False: another does, or it is released."""
        arguments = [from_home, home, _words((JobState.RELEASED,))]
        return bool(await self._store.run("job_adopt", [self._keys.job(job_id)], arguments))

    async def released(self, job_id: str) -> bool:
        """The result was handed out. False: there is none yet, or the job is unknown."""
        keys, event = self._keys, JobEvent.RELEASE
        named = [keys.job(job_id), keys.job_waiters(job_id), keys.job_payload(job_id)]
        # Read the place in the list first: a job that is created anew after Redis was emptied has another place.
        listed, released = await self._store.batch(
            [("ZSCORE", keys.jobs_live, job_id), call("job_release", named, [_from(event), _to(event)])], "job_release"
        )
        if released and listed is not None:
            arguments = [job_id, self._store.settings.result_ttl_ms, listed]
            await self._store.run("job_unlist", self._lists, arguments)
        return bool(released)

    async def get(self, job_id: str) -> Job | None:
        """None if it is unknown."""
        return (await self.get_all([job_id]))[0]

    async def get_all(self, job_ids: Sequence[str]) -> list[Job | None]:
        """Any number of jobs, in their order."""
        found = await self._store.batch([call("job_get", [self._keys.job(job_id)]) for job_id in job_ids], "job_get")
        return [Job.read(pairs) for pairs in found]

    async def result(self, job_id: str) -> bytes | None:
        """None if there is none, yet or any more."""
        found: bytes | None = await self._store.do("GET", self._keys.job_result(job_id))
        return found

    async def waiters(self, job_id: str) -> frozenset[str]:
        """The sessions that wait for it."""
        found = await self._store.do("SMEMBERS", self._keys.job_waiters(job_id))
        return frozenset(waiter.decode() for waiter in found)

    async def put_payload(self, job_id: str, packed: bytes) -> bool:
        """Keep what a node is to get, until the deadline. False: nobody needs it any more."""
        keys = [self._keys.job(job_id), self._keys.job_payload(job_id)]
        return bool(await self._store.run("job_payload", keys, [packed, _DONE]))

    async def payload(self, job_id: str) -> bytes | None:
        """None if there is none, or the job is done."""
        found: bytes | None = await self._store.do("GET", self._keys.job_payload(job_id))
        return found

    async def live(self, until_ms: int | None = None) -> list[str]:
        """Ids of jobs that are not released, those with the earliest deadline first."""
        upper = "+inf" if until_ms is None else until_ms
        found = await self._store.do("ZRANGEBYSCORE", self._keys.jobs_live, "-inf", upper)
        return [job_id.decode() for job_id in found]

    async def counts(self) -> dict[JobState, int]:
        """How many jobs are in each state. Released ones are counted as long as their results are kept."""
        await self.prune()
        live = [job.state for job in await self.get_all(await self.live()) if job]
        counts = {state: live.count(state) for state in JobState}
        counts[JobState.RELEASED] = max(0, int(await self._store.do("ZCARD", self._keys.jobs)) - len(live))
        return counts

    async def prune(self) -> None:
        """Take jobs that are not kept any more off the lists."""
        while await self._store.run("job_prune", self._lists, [_CHUNK]) == _CHUNK:
            pass

    async def list(self, *, state: JobState | None = None, limit: int = 100) -> list[Job]:
        """The newest jobs first."""
        found: list[Job] = []
        begin = 0
        while len(found) < limit:
            listed = await self._store.do("ZREVRANGE", self._keys.jobs, begin, begin + _CHUNK - 1)
            jobs = await self.get_all([job_id.decode() for job_id in listed])
            found += [job for job in jobs if job and state in {None, job.state}]
            begin += _CHUNK
            if len(listed) < _CHUNK:
                break
        return found[:limit]
