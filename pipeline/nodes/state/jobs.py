"""Jobs in Redis: their states, waiting sessions, payloads and results.

A repeated operation with the same arguments gives the same answer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from pipeline.nodes.job import DONE, JOB, WITH_NODE, Finished, Job, JobEvent, JobState, NewJob
from pipeline.nodes.parcel import Parcel
from pipeline.nodes.protocol import CANCELLED, JobError
from pipeline.nodes.state.sender import Part, call
from pipeline.nodes.state.store import Store

MAX_LISTED = 100_000
"""The most jobs in the list; it drops the oldest."""
_CHUNK = 200


def _words(states: Iterable[JobState]) -> str:
    return f",{','.join(states)},"


def _from(event: JobEvent) -> str:
    return _words(JOB.sources(event))


def _to(event: JobEvent) -> str:
    (target,) = set(JOB.sources(event).values())
    return target


_DONE = _words(DONE)
_REACHED = {
    JobEvent.DISPATCH: _words(WITH_NODE),
    JobEvent.ACK: _words((JobState.ACCEPTED, JobState.RUNNING)),
    JobEvent.START: _words((JobState.RUNNING,)),
    JobEvent.PARTIAL: _words((JobState.RUNNING,)),
}
"""The states in which an event has happened already."""


class Jobs:
    """The jobs of all instances."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys
        self._lists = [store.keys.jobs, store.keys.jobs_live, store.keys.jobs_ends]

    async def create(self, new: NewJob, waiter: str = "", payload: bytes = b"") -> Job:
        """Create the job unless it exists, with its payload if any, and return it as stored. The session `waiter` waits
        for it unless it is done."""
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
        # List the job first: upkeep skips a listed job that does not exist, but never finds an unlisted one.
        _, pairs = await self._store.batch(
            [
                call("job_list", self._lists, [job_id, timeout_ms, kept_ms, MAX_LISTED]),
                call("job_create", [keys.job(job_id), keys.job_waiters(job_id), keys.job_payload(job_id)], arguments),
            ],
            "job_create",
        )
        job = Job.read(pairs)
        assert job is not None
        return job

    async def join(self, job_id: str, session_id: str) -> tuple[Job | None, bytes | None]:
        """Make the session wait for the job unless it is done. Returns (the job, None if unknown; its packed result,
        None before its end)."""
        keys = [self._keys.job(job_id), self._keys.job_waiters(job_id), self._keys.job_result(job_id)]
        pairs, result = await self._store.run("job_join", keys, [session_id, _DONE])
        return Job.read(pairs), result or None

    async def leave(self, job_id: str, session_id: str) -> int:
        """Remove the session from those that wait for the job. Returns how many remain."""
        key = self._keys.job_waiters(job_id)
        _, remaining = await self._store.batch([("SREM", key, session_id), ("SCARD", key)], "job_leave")
        return int(remaining)

    async def dispatch(self, job_id: str, attempt: int, node_id: str, token_id: str = "") -> bool:
        """Record that the attempt is assigned to the node, which is connected with this token; sends nothing. False:
        another node has the attempt, or it is over."""
        return await self._step("job_dispatch", job_id, JobEvent.DISPATCH, attempt, node_id, token_id)

    async def acknowledge(self, job_id: str, attempt: int, node_id: str) -> bool:
        """Record that the node has the job. False: the attempt is over, or another node has it."""
        return await self._step("job_step", job_id, JobEvent.ACK, attempt, node_id)

    async def start(self, job_id: str, attempt: int, node_id: str) -> bool:
        """Record that the node works on the job. False: the attempt is over, or another node has it."""
        return await self._step("job_step", job_id, JobEvent.START, attempt, node_id)

    async def record_partial(self, job_id: str, attempt: int, node_id: str) -> bool:
        """Record that a piece of the result arrived. False: the attempt is over, or another node has it."""
        return await self._step("job_step", job_id, JobEvent.PARTIAL, attempt, node_id)

    async def _step(self, script: str, job_id: str, event: JobEvent, attempt: int, node_id: str, *more: Part) -> bool:
        arguments: list[Part] = [attempt, node_id, _from(event), _to(event), _REACHED[event], *more]
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
        """Store the job's packed result for `result_ttl_ms`, and drop the payload. A repeated call returns the same.
        None: the attempt is over or another node's, or the job is done otherwise or unknown.

        `attempt` None: the gateway ends the job itself, whatever its attempt.
        """
        keys = self._keys
        named = [keys.job(job_id), keys.job_waiters(job_id), keys.job_result(job_id), keys.job_payload(job_id)]
        event = JobEvent.FINISH
        machine: list[Part] = ["" if attempt is None else attempt, node_id, _from(event), _to(event), _words(WITH_NODE)]
        result: list[Part] = [packed, outcome, code, error, self._store.settings.result_ttl_ms]
        pairs, waiters, repeated = await self._store.run("job_finish", named, [*machine, *result])
        job = Job.read(pairs)
        if job is None:
            return None
        return Finished(job, frozenset(waiter.decode() for waiter in waiters), bool(repeated))

    async def end(self, job_id: str, error: JobError) -> tuple[Finished, bytes] | None:
        """End the job with an error of the gateway as its result. None: the job is done already, or unknown."""
        packed = Parcel({"error": error.model_dump(exclude_none=True)}).pack()
        outcome = "cancelled" if error.code == CANCELLED else "error"
        finished = await self.finish(job_id, None, "", packed, outcome, error.code, error.message)
        return (finished, packed) if finished else None

    async def retry(self, job_id: str, from_attempt: int, *, free: bool = False) -> Job | None:
        """End attempt `from_attempt` and count up to the next, which has no node yet: the job is CREATED again, and
        keeps `node_id` of the attempt that is over.

        `free`: the attempt does not count towards `max_attempts`. None: the job is done or at another attempt, or this
        was its last.
        """
        event = JobEvent.RETRY
        arguments: list[Part] = [from_attempt, _from(event), _to(event), int(free)]
        return Job.read(await self._store.run("job_retry", [self._keys.job(job_id)], arguments))

    async def adopt(self, job_id: str, from_home: str, home: str) -> bool:
        """Record `home` as the job's home in place of `from_home`. False: the job has another home, or is released."""
        arguments = [from_home, home, _words((JobState.RELEASED,))]
        return bool(await self._store.run("job_adopt", [self._keys.job(job_id)], arguments))

    async def release(self, job_id: str) -> bool:
        """Record that the result was sent to the sessions, and delete the payload and the waiters; the result stays
        until its time. False: the job has no result yet, or is unknown."""
        keys, event = self._keys, JobEvent.RELEASE
        named = [keys.job(job_id), keys.job_waiters(job_id), keys.job_payload(job_id)]
        # Read the score first, so that `job_unlist` spares a job that is created again after Redis lost its data.
        listed, released = await self._store.batch(
            [("ZSCORE", keys.jobs_live, job_id), call("job_release", named, [_from(event), _to(event)])], "job_release"
        )
        if released and listed is not None:
            arguments = [job_id, self._store.settings.result_ttl_ms, listed]
            await self._store.run("job_unlist", self._lists, arguments)
        return bool(released)

    async def get(self, job_id: str) -> Job | None:
        """Return the job; None if it is unknown."""
        return (await self.get_all([job_id]))[0]

    async def get_all(self, job_ids: Sequence[str]) -> list[Job | None]:
        """Return these jobs, in their order; None for unknown ones."""
        answers = await self._store.batch([call("job_get", [self._keys.job(job_id)]) for job_id in job_ids], "job_get")
        return [Job.read(pairs) for pairs in answers]

    async def result(self, job_id: str) -> bytes | None:
        """Return the packed result; None if the job has none yet, or Redis no longer keeps it."""
        packed: bytes | None = await self._store.do("GET", self._keys.job_result(job_id))
        return packed

    async def waiters(self, job_id: str) -> frozenset[str]:
        """Return the ids of the sessions that wait for the job; empty for a released or unknown job."""
        return frozenset(waiter.decode() for waiter in await self._store.do("SMEMBERS", self._keys.job_waiters(job_id)))

    async def put_payload(self, job_id: str, packed: bytes) -> bool:
        """Store the payload for a node until the deadline. False: the job is done or unknown."""
        keys = [self._keys.job(job_id), self._keys.job_payload(job_id)]
        return bool(await self._store.run("job_payload", keys, [packed, _DONE]))

    async def payload(self, job_id: str) -> bytes | None:
        """Return the packed payload; None if it was never stored, or the job is done."""
        packed: bytes | None = await self._store.do("GET", self._keys.job_payload(job_id))
        return packed

    async def live(self, until_ms: int | None = None) -> list[str]:
        """Return the ids of unreleased jobs with a deadline up to `until_ms`, the earliest first."""
        upper = "+inf" if until_ms is None else until_ms
        job_ids = await self._store.do("ZRANGEBYSCORE", self._keys.jobs_live, "-inf", upper)
        return [job_id.decode() for job_id in job_ids]

    async def counts(self) -> dict[JobState, int]:
        """Count the jobs in each state. Released jobs count as long as their results are kept."""
        await self.prune()
        live = [job.state for job in await self.get_all(await self.live()) if job]
        counts = {state: live.count(state) for state in JobState}
        counts[JobState.RELEASED] = max(0, int(await self._store.do("ZCARD", self._keys.jobs)) - len(live))
        return counts

    async def prune(self) -> None:
        """Remove jobs that Redis no longer keeps from the lists of jobs."""
        while await self._store.run("job_prune", self._lists, [_CHUNK]) == _CHUNK:
            pass

    async def list(self, *, state: JobState | None = None, limit: int = 100) -> list[Job]:
        """Return at most `limit` jobs, only those in `state` if given, the newest first."""
        matches: list[Job] = []
        offset = 0
        while len(matches) < limit:
            listed = await self._store.do("ZREVRANGE", self._keys.jobs, offset, offset + _CHUNK - 1)
            jobs = await self.get_all([job_id.decode() for job_id in listed])
            matches += [job for job in jobs if job and state in {None, job.state}]
            offset += _CHUNK
            if len(listed) < _CHUNK:
                break
        return matches[:limit]
