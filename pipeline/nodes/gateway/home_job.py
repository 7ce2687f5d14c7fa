"""A job that an instance schedules or may adopt, and the message that gives it to a node."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.nodes.gateway.view import Need
from pipeline.nodes.job import Job
from pipeline.nodes.parcel import Parcel
from pipeline.nodes.protocol import Attachment, JobAssign, JobRequest


@dataclass(eq=False)
class HomeJob:
    """A job with the payload for its node. Times are of this process's monotonic clock."""

    job: Job
    request: JobRequest
    parts: Sequence[bytes]
    started: float
    deadline: float
    is_home: bool = True
    """This instance schedules the job. If not, a session here waits for it, and this instance adopts it if its home
    dies."""
    attempt: int = 1
    node_id: str = ""
    """The node that has the job."""
    node_token: str = ""
    """The token of the node's connection. A node of this name with another token is another node."""
    next_node_id: str = ""
    """The node to which the instance is about to give the job."""
    undelivered: bool = False
    """The assignment has not reached the node: Redis is away, or has lost the node's owner."""
    attempt_until: float = 0.0
    failed_nodes: set[str] = field(default_factory=set)
    """Nodes that dropped the job."""
    in_line_since: float = 0.0
    """When the job was last put in line. 0: it is not in line."""
    checked_at: float = 0.0
    """When this instance last compared the job with Redis."""
    unseen_since: float = 0.0
    """Since when the job's node is not connected. 0: it is connected."""

    @property
    def id(self) -> str:
        return self.job.job_id

    @property
    def need(self) -> Need:
        return Need(self.request.capability, self.request.model)

    def parcel(self) -> Parcel:
        """Return the payload for a node."""
        head = self.request.model_dump(include={"capability", "model", "body", "attachments"})
        return Parcel(head, self.parts)


def assignment(job_id: str, attempt: int, timeout_ms: int, parcel: Parcel) -> JobAssign:
    """Build the message to a node from the payload of `HomeJob.parcel`."""
    head = parcel.head
    return JobAssign(
        job_id=job_id,
        attempt=attempt,
        capability=head["capability"],
        model=head["model"],
        body=head["body"],
        timeout_ms=max(1, timeout_ms),
        attachments=tuple(Attachment(**fields) for fields in head["attachments"]),
    )
