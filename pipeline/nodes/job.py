"""The machine of a job, as data: which event leads from which state to which. Source 004, "Job FSM"."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from pipeline.engine.states import Machine


class JobState(StrEnum):
    """Where a job is, in the source's words."""

    CREATED = "CREATED"
    """It waits for a node, for the first time or again."""
    DISPATCHED = "DISPATCHED"
    """It was given to a node."""
    ACCEPTED = "ACCEPTED"
    """The node has it and will do it."""
    RUNNING = "RUNNING"
    """The node works on it."""
    FINISHED = "FINISHED"
    """Its result is kept, and goes to those who wait for it."""
    RELEASED = "RELEASED"
    """The result was handed out, and its slot is free."""


class JobEvent(StrEnum):
    """What can happen to a job."""

    DISPATCH = "dispatch"
    ACK = "ack"
    START = "start"
    PARTIAL = "partial"
    """A piece of the result came: the node works on it, even if it never said so."""
    FINISH = "finish"
    RETRY = "retry"
    """The attempt is over without a result: another node is to do it."""
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
"""A node has it."""
DONE = (JobState.FINISHED, JobState.RELEASED)
"""It has a result, and never another one."""


@dataclass(frozen=True)
class NewJob:
    """What a job is made from."""

    job_id: str
    request_key: str
    capability: str
    model: str
    requester: str
    """Whose it is: the queue is fair between them."""
    home: str
    """`instance/boot` of who schedules it."""
    timeout_ms: int
    attempt_timeout_ms: int
    max_attempts: int


@dataclass(frozen=True)
class Job:
    """A job, as Redis has it. Times are ms of the Redis server's clock; 0 and empty: not yet."""

    job_id: str
    request_key: str
    state: JobState
    attempt: int
    node_id: str = ""
    """Who has it, or had it last."""
    node_token: str = ""
    """The id of the token of the node's connection: the attempt belongs to that token."""
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
        """From names and values in turn; None for a job that is not there."""
        found: list[str] = [part.decode() for part in pairs]
        if not found:
            return None
        values: dict[str, Any] = dict(zip(found[::2], found[1::2], strict=True))
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
    """What `finish` did."""

    job: Job
    waiters: frozenset[str] = field(default_factory=frozenset)
    """Sessions that are to get the result."""
    again: bool = False
    """It was finished so before: this is an answer that was lost."""
