"""Messages to nodes, sessions and homes: directly if they are here, else through the inbox of their instance."""

from collections.abc import Awaitable, Callable
from typing import Any

from pipeline.nodes.gateway.home_job import HomeJob, assignment
from pipeline.nodes.gateway.links import Links, NodeLink, SessionLink
from pipeline.nodes.job import Finished, Job
from pipeline.nodes.parcel import Parcel
from pipeline.nodes.protocol import Attachment, JobError, NodeCancel, SessionPartial, SessionResult
from pipeline.nodes.state.inbox import Inbox
from pipeline.nodes.state.jobs import Jobs
from pipeline.nodes.state.requests import Requests

INLINE_BYTES = 128 * 1024
"""Larger payloads and results get a key of their own, because the limit of an inbox counts entries, not bytes."""


def request_id_of(request_key: str) -> str:
    """Return the request's id at its session: the key without the token's id."""
    return request_key.partition(":")[2]


def answer(link: SessionLink, request_key: str, job_id: str, packed: bytes) -> None:
    """Send a job's packed result to a session that waits for it."""
    parcel = Parcel.unpack(packed)
    head = parcel.head
    message = SessionResult(
        request_id=request_id_of(request_key),
        job_id=job_id,
        attempt=head.get("attempt", 0),
        node_id=head.get("node_id", ""),
        result=head.get("result"),
        error=JobError(**head["error"]) if head.get("error") else None,
        attachments=tuple(Attachment(**fields) for fields in head.get("attachments", ())),
    )
    link.answer(message, tuple(parcel.parts))


class Delivery:
    """Sends directly to local links, and by streams to other instances. Rules: docs/sources/nodes.md#delivery."""

    def __init__(
        self,
        home: str,
        nodes: Links[NodeLink],
        sessions: Links[SessionLink],
        inbox: Inbox,
        jobs: Jobs,
        requests: Requests,
        notify: Callable[[str, str, str], Awaitable[None]],
    ) -> None:
        """`notify`: `Dispatch.notify` of this instance."""
        self._home = home
        self._nodes = nodes
        self._sessions = sessions
        self._inbox = inbox
        self._jobs = jobs
        self._requests = requests
        self._notify = notify

    # To homes and nodes

    async def notify_home(self, home: str, kind: str, job_id: str, node_id: str = "") -> None:
        """Send a job's home a message of a `kind` of `Dispatch.notify`. A dead home's message is lost: an instance
        whose session waits for the job adopts it."""
        if home == self._home:
            await self._notify(kind, job_id, node_id)
        else:
            await self._inbox.send(home.partition("/")[0], kind, {"job_id": job_id, "node_id": node_id})

    async def assign(self, job: HomeJob, timeout_ms: int) -> bool:
        """Send a job's attempt to its node, directly or through the node's instance. False: no instance owns the node,
        or it is connected with another token. `timeout_ms`: the time left for the attempt."""
        parcel = job.parcel()
        if link := self._nodes.get(job.node_id):
            if link.token_id == job.node_token:
                link.assign(assignment(job.id, job.attempt, timeout_ms, parcel), job.parts)
            return link.token_id == job.node_token
        packed = parcel.pack()
        body = {
            "node_id": job.node_id,
            "token_id": job.node_token,
            "job_id": job.id,
            "attempt": job.attempt,
            "timeout_ms": timeout_ms,
        }
        if len(packed) > INLINE_BYTES:
            await self._jobs.put_payload(job.id, packed)
            packed = b""
        return await self.to_owner_of_node("assign", body, packed)

    async def cancel(self, node_id: str, job_id: str, attempt: int, reason: str) -> None:
        """Tell a node that an attempt is over. The message is lost if the node is not connected."""
        if link := self._nodes.get(node_id):
            link.cancel(NodeCancel(job_id=job_id, attempt=attempt, reason=reason))
        else:
            body = {"node_id": node_id, "job_id": job_id, "attempt": attempt, "reason": reason}
            await self.to_owner_of_node("cancel", body)

    async def to_owner_of_node(self, kind: str, body: dict[str, Any], payload: bytes = b"", dead: str = "") -> bool:
        """Send a message to the other instance that owns the node `body["node_id"]`. False: this instance, `dead` or
        none owns it, or the owner has no inbox."""
        owner = await self._nodes.elsewhere(body["node_id"], dead)
        return bool(owner) and await self._inbox.send(owner, kind, body, payload)

    # To sessions

    async def result(self, finished: Finished, packed: bytes) -> None:
        """Send a finished job's packed result to the sessions that wait for it, and `done` to the job's home. A
        disconnected session gets the result when it repeats the request."""
        job = finished.job
        if job.outcome != "ok":  # before sending, so that a session can retry as soon as it gets the error
            await self._requests.forget(job.request_key, job.job_id)
        notified = {self._home.partition("/")[0]}
        for session_id in finished.waiters:
            if link := self._sessions.get(session_id):
                answer(link, job.request_key, job.job_id, packed)
            elif owner := await self._sessions.elsewhere(session_id):
                notified.add(owner)
                body = {"session_id": session_id, "request_key": job.request_key, "job_id": job.job_id}
                await self._inbox.send(owner, "result", body, packed if len(packed) <= INLINE_BYTES else b"")
        if job.home.partition("/")[0] not in notified:
            await self.notify_home(job.home, "done", job.job_id)

    async def stored_result(self, job: Job) -> None:
        """Send a job's result, as stored in Redis, to this instance's sessions that wait for the job. Does nothing if
        Redis has none."""
        packed = await self._jobs.result(job.job_id)
        if packed is None:
            return
        for link in self.local_waiters(job.job_id):
            answer(link, job.request_key, job.job_id, packed)

    def local_waiters(self, job_id: str) -> list[SessionLink]:
        """Return the sessions of this instance that wait for the job."""
        return [link for link in self._sessions.values() if link.waits_for(job_id)]

    async def partial(self, job: Job, attempt: int, text: str) -> None:
        """Send a piece of a job's text to all waiting sessions that want pieces and read fast enough."""
        request_id = request_id_of(job.request_key)
        for session_id in await self._jobs.waiters(job.job_id):
            if link := self._sessions.get(session_id):
                link.partial(SessionPartial(request_id=request_id, attempt=attempt, text=text))
            elif owner := await self._sessions.elsewhere(session_id):
                body = {"session_id": session_id, "request_id": request_id, "attempt": attempt, "text": text}
                await self._inbox.send_dispensable(owner, "partial", body)
