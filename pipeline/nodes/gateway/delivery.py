"""Messages to nodes, sessions and homes, wherever they are connected: here, or through another instance's inbox."""

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
"""What is larger does not travel in an inbox, which is cut by the number of its entries, but has a key of its own."""


def request_id_of(request_key: str) -> str:
    """The session's own id of a request: keys begin with the token's id."""
    return request_key.partition(":")[2]


def answer(link: SessionLink, request_key: str, job_id: str, packed: bytes) -> None:
    """Tell a session what a job's result holds."""
    parcel = Parcel.unpack(packed)
    head = parcel.head
    message = SessionResult(
        request_id=request_id_of(request_key),
        job_id=job_id,
        attempt=head.get("attempt", 0),
        node_id=head.get("node_id", ""),
        result=head.get("result"),
        error=JobError(**head["error"]) if head.get("error") else None,
        attachments=tuple(Attachment(**one) for one in head.get("attachments", ())),
    )
    link.answer(message, tuple(parcel.parts))


class Delivery:
    """What must arrive goes by stream, and at once to a node or session that is here.

    Rules: docs/sources/nodes.md#delivery.
    """

    def __init__(
        self,
        home: str,
        nodes: Links[NodeLink],
        sessions: Links[SessionLink],
        inbox: Inbox,
        jobs: Jobs,
        requests: Requests,
        hear: Callable[[str, str, str], Awaitable[None]],
    ) -> None:
        """`hear`: what the home of jobs here does when it is told something of a job and a node."""
        self._home = home
        self._nodes = nodes
        self._sessions = sessions
        self._inbox = inbox
        self._jobs = jobs
        self._requests = requests
        self._hear = hear

    # To homes and nodes

    async def tell(self, home: str, kind: str, job_id: str, node_id: str = "") -> None:
        """Tell the instance that is home to a job. A dead one is not told: who waits for the job adopts it."""
        if home == self._home:
            await self._hear(kind, job_id, node_id)
        else:
            await self._inbox.send(home.partition("/")[0], kind, {"job_id": job_id, "node_id": node_id})

    async def assign(self, job: HomeJob, timeout_ms: int) -> bool:
        """Give a job to its node. False: nobody knows where that is connected."""
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
        """Tell a node that an attempt is over. The word is lost if the node is."""
        if link := self._nodes.get(node_id):
            link.cancel(NodeCancel(job_id=job_id, attempt=attempt, reason=reason))
        else:
            body = {"node_id": node_id, "job_id": job_id, "attempt": attempt, "reason": reason}
            await self.to_owner_of_node("cancel", body)

    async def to_owner_of_node(self, kind: str, body: dict[str, Any], payload: bytes = b"", dead: str = "") -> bool:
        """Tell the other instance that the node is connected to. False: none is known, or it has no inbox."""
        owner = await self._nodes.elsewhere(body["node_id"], dead)
        return bool(owner) and await self._inbox.send(owner, kind, body, payload)

    # To sessions

    async def result(self, finished: Finished, packed: bytes) -> None:
        """The result of a job to all that wait for it. Whoever is not connected asks again, and gets it then."""
        job = finished.job
        if job.outcome != "ok":  # first: whoever gets the error may ask again at once
            await self._requests.forget(job.request_key, job.job_id)
        told = {self._home.partition("/")[0]}
        for session_id in finished.waiters:
            if link := self._sessions.get(session_id):
                answer(link, job.request_key, job.job_id, packed)
            elif owner := await self._sessions.elsewhere(session_id):
                told.add(owner)
                body = {"session_id": session_id, "request_key": job.request_key, "job_id": job.job_id}
                await self._inbox.send(owner, "result", body, packed if len(packed) <= INLINE_BYTES else b"")
        if job.home.partition("/")[0] not in told:
            await self.tell(job.home, "done", job.job_id)

    async def from_redis(self, job: Job) -> None:
        """A result that was kept, to the sessions here that wait for it."""
        packed = await self._jobs.result(job.job_id)
        if packed is None:
            return
        for link in self.waiting_here(job.job_id):  # Redis has forgotten by now who does
            answer(link, job.request_key, job.job_id, packed)

    def waiting_here(self, job_id: str) -> list[SessionLink]:
        """The sessions of this instance that wait for the job."""
        return [link for link in self._sessions.values() if link.waits_for(job_id)]

    async def partial(self, job: Job, attempt: int, text: str) -> None:
        """A piece of a result to all that wait for it."""
        request_id = request_id_of(job.request_key)
        for session_id in await self._jobs.waiters(job.job_id):
            if link := self._sessions.get(session_id):
                link.partial(SessionPartial(request_id=request_id, attempt=attempt, text=text))
            elif owner := await self._sessions.elsewhere(session_id):
                body = {"session_id": session_id, "request_id": request_id, "attempt": attempt, "text": text}
                await self._inbox.send_dispensable(owner, "partial", body)
