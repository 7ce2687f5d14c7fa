"""A job that an instance schedules, or is ready to, and the message by which a node is given it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.nodes.gateway.view import Need
from pipeline.nodes.job import Job
from pipeline.nodes.parcel import Parcel
from pipeline.nodes.protocol import Attachment, JobAssign, JobRequest


@dataclass(eq=False)
class HomeJob:
    """A job with what is needed to give it to a node, again if need be. Times are by the clock of this process."""

    job: Job
    request: JobRequest
    parts: Sequence[bytes]
    begun: float
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

    def parcel(self) -> Parcel:
        """What a node is given."""
        head = self.request.model_dump(include={"capability", "model", "body", "attachments"})
        return Parcel(head, self.parts)


def assignment(job_id: str, attempt: int, timeout_ms: int, parcel: Parcel) -> JobAssign:
    """The message to a node for what `HomeJob.parcel` holds."""
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
