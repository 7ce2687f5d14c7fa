"""The names of keys: those of docs/sources/nodes.md#keys with their hash tags, and a few more of the same form.

All keys of one script share a hash tag, so that they lie on one server of a cluster. Two names differ from the
design's: `requests:lock` and `requests:binding` have a hash tag, because one script changes both.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Keys:
    """Builds key names. Every name begins with `prefix`."""

    prefix: str

    # `schedulers` lists the instances by when they were last seen, without the dead whose inbox is closed.

    @property
    def schedulers(self) -> str:
        return f"{self.prefix}:v1:schedulers:all"

    def presence(self, instance_id: str) -> str:
        return f"{self.prefix}:schedulers:presence:{instance_id}"

    def info(self, instance_id: str) -> str:
        return f"{self.prefix}:v1:schedulers:info:{instance_id}"

    def node_owner(self, node_id: str) -> str:
        return f"{self.prefix}:nodes:owner:{{node:{node_id}}}"

    def session_owner(self, session_id: str) -> str:
        return f"{self.prefix}:sessions:owner:{{session:{session_id}}}"

    # Messages between instances.

    def inbox(self, instance_id: str) -> str:
        return f"{self.prefix}:streams:{{instance:{instance_id}}}:inbox"

    def dlq(self, instance_id: str) -> str:
        return f"{self.prefix}:streams:{{instance:{instance_id}}}:dlq"

    def drain(self, instance_id: str) -> str:
        """The key of the lease of the instance that drains a dead instance's inbox."""
        return f"{self.prefix}:streams:{{instance:{instance_id}}}:drain"

    @property
    def dlqs(self) -> str:
        """The key of the set of dead instances that left dead letters."""
        return f"{self.prefix}:v1:streams:dlqs"

    @property
    def dlq_moved(self) -> str:
        """The key of the number of messages that ever became dead letters."""
        return f"{self.prefix}:v1:streams:dlq_moved"

    # Snapshots of nodes, which every instance reads.

    @property
    def nodes(self) -> str:
        return f"{self.prefix}:v1:nodes:all"

    @property
    def nodes_last_seen(self) -> str:
        return f"{self.prefix}:v1:nodes:last_seen"

    def node_presence(self, node_id: str) -> str:
        return f"{self.prefix}:v1:nodes:presence:{node_id}"

    def node_snapshot(self, node_id: str) -> str:
        return f"{self.prefix}:v1:nodes:snapshot:{node_id}"

    # The slots of one node.

    def reserved(self, node_id: str) -> str:
        return f"{self.prefix}:v1:nodes:{{node:{node_id}}}:reserved"

    def reserved_since(self, node_id: str) -> str:
        return f"{self.prefix}:v1:nodes:{{node:{node_id}}}:reserved_since"

    def avoid(self, node_id: str) -> str:
        return f"{self.prefix}:v1:nodes:{{node:{node_id}}}:avoid"

    def missing(self, node_id: str) -> str:
        return f"{self.prefix}:v1:nodes:{{node:{node_id}}}:missing"

    # Requests and jobs.

    def request_lock(self, request_key: str) -> str:
        return f"{self.prefix}:v1:requests:lock:{{request:{request_key}}}"

    def request_binding(self, request_key: str) -> str:
        return f"{self.prefix}:v1:requests:binding:{{request:{request_key}}}"

    def job(self, job_id: str) -> str:
        return f"{self.prefix}:v1:jobs:{{job:{job_id}}}:fsm"

    def job_waiters(self, job_id: str) -> str:
        return f"{self.prefix}:v1:jobs:{{job:{job_id}}}:waiters"

    def job_payload(self, job_id: str) -> str:
        return f"{self.prefix}:v1:jobs:{{job:{job_id}}}:payload"

    def job_result(self, job_id: str) -> str:
        return f"{self.prefix}:v1:jobs:{{job:{job_id}}}:result"

    @property
    def jobs(self) -> str:
        """The key of the jobs, by creation time."""
        return f"{self.prefix}:v1:{{jobs}}:all"

    @property
    def jobs_live(self) -> str:
        """The key of the jobs that are not released, by deadline."""
        return f"{self.prefix}:v1:{{jobs}}:live"

    @property
    def jobs_ends(self) -> str:
        """The key of the jobs, by the time at which the lists drop them."""
        return f"{self.prefix}:v1:{{jobs}}:ends"

    # The line of a pool: jobs that wait for a node that offers the pool's capability and model.

    @property
    def pools(self) -> str:
        return f"{self.prefix}:v1:waiting:pools"

    def waiting(self, pool: str) -> list[str]:
        """The keys of a line: requesters' turns, the order of their jobs, the jobs, their ends, the current turn."""
        base = f"{self.prefix}:v1:waiting:{{waiting:{pool}}}"
        return [f"{base}:{part}" for part in ("turns", "order", "jobs", "until", "state")]

    @property
    def upkeep(self) -> str:
        return f"{self.prefix}:v1:upkeep:lease"
