"""The state machine of a job, as data. Rules: docs/sources/nodes.md#jobs."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from pipeline.engine.states import Machine


class JobState(StrEnum):
    """The states of a job, by the design's names."""

    CREATED = "CREATED"
    """The job waits for a node, for its first attempt or a later one."""
    DISPATCHED = "DISPATCHED"
    """The gateway gave the job to a node."""
    ACCEPTED = "ACCEPTED"
    """The node acknowledged the job."""
    RUNNING = "RUNNING"
    """The node works on the job."""
    FINISHED = "FINISHED"
    """The result is stored, and the gateway sends it to the waiting sessions."""
    RELEASED = "RELEASED"
    """The gateway sent the result out and freed the slot."""


class JobEvent(StrEnum):
    """The events that move a job from state to state."""

    DISPATCH = "dispatch"
    ACK = "ack"
    START = "start"
    PARTIAL = "partial"
    """A piece of the result arrived, so the node works on the job even if it never sent `job_started`."""
    FINISH = "finish"
    RETRY = "retry"
    """The attempt ended without a result, so the job waits for another node."""
    RELEASE = "release"


LEGAL = {
    (JobState.CREATED, JobEvent.DISPATCH): JobState.DISPATCHED,
    (JobState.DISPATCHED, JobEvent.ACK): JobState.ACCEPTED,
    (JobState.DISPATCHED, JobEvent.START): JobState.RUNNING,
    (JobState.ACCEPTED, JobEvent.START): JobState.RUNNING,
    (JobState.DISPATCHED, JobEvent.PARTIAL): JobState.RUNNING,
    (JobState.ACCEPTED, JobEvent.PARTIAL): JobState.RUNNING,
    (JobState.RUNNING, JobEvent.PARTIAL): JobState.RUNNING,
    (JobState.CREATED, JobEvent.FINISH): JobState.FINISHED,
    (JobState.DISPATCHED, JobEvent.FINISH): JobState.FINISHED,
    (JobState.ACCEPTED, JobEvent.FINISH): JobState.FINISHED,
    (JobState.RUNNING, JobEvent.FINISH): JobState.FINISHED,
    (JobState.DISPATCHED, JobEvent.RETRY): JobState.CREATED,
    (JobState.ACCEPTED, JobEvent.RETRY): JobState.CREATED,
    (JobState.RUNNING, JobEvent.RETRY): JobState.CREATED,
    (JobState.FINISHED, JobEvent.RELEASE): JobState.RELEASED,
}
JOB = Machine("job", LEGAL)
WITH_NODE = (JobState.DISPATCHED, JobState.ACCEPTED, JobState.RUNNING)
"""States in which a node has the job."""
DONE = (JobState.FINISHED, JobState.RELEASED)
"""States in which the job has its result, which never changes."""


@dataclass(frozen=True)
class NewJob:
    """The fields from which `Jobs.create` makes a job."""

    job_id: str
    request_key: str
    capability: str
    model: str
    requester: str
    """The session's token. Requesters take turns in the line."""
    home: str
    """The process that schedules the job, as `instance/boot`."""
    timeout_ms: int
    attempt_timeout_ms: int
    max_attempts: int


@dataclass(frozen=True)
class Job:
    """A job as stored in Redis. Times are ms of the Redis server's clock; 0 and empty: not yet."""

    job_id: str
    request_key: str
    state: JobState
    attempt: int
    node_id: str = ""
    """The node that has the job, or had it last."""
    node_token: str = ""
    """The id of the token with which that node connected. The attempt belongs to this token."""
    home: str = ""
    capability: str = ""
    model: str = ""
    requester: str = ""
    created_ms: int = 0
    deadline_ms: int = 0
    attempt_until_ms: int = 0
    attempt_timeout_ms: int = 0
    max_attempts: int = 1
    outcome: str = ""
    """`ok`, `error` or `cancelled`."""
    error_code: str = ""
    error: str = ""
    finished_ms: int = 0

    @classmethod
    def read(cls, pairs: Iterable[bytes]) -> Self | None:
        """Read a job from alternating field names and values. Returns None if there are none."""
        parts: list[str] = [part.decode() for part in pairs]
        if not parts:
            return None
        values: dict[str, Any] = dict(zip(parts[::2], parts[1::2], strict=True))
        for name in _NUMBERS & values.keys():
            values[name] = int(float(values[name]))
        return cls(
            **{name: value for name, value in values.items() if name in _FIELDS} | {"state": JobState(values["state"])}
        )


_NUMBERS = {
    "attempt",
    "created_ms",
    "deadline_ms",
    "attempt_until_ms",
    "attempt_timeout_ms",
    "max_attempts",
    "finished_ms",
}
_FIELDS = frozenset(Job.__dataclass_fields__)


@dataclass(frozen=True)
class Finished:
    """The outcome of `Jobs.finish`."""

    job: Job
    waiters: frozenset[str] = field(default_factory=frozenset)
    """Sessions that wait for the result."""
    repeated: bool = False
    """An earlier call finished the job in the same way, so its answer was lost."""
