"""Messages to nodes, sessions and homes, wherever they are connected: here, or through another instance's inbox."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog

from pipeline.nodes.gateway.dispatch import HomeJob, assignment
from pipeline.nodes.job import Finished, Job
from pipeline.nodes.parcel import Parcel
from pipeline.nodes.protocol import (
    Attachment,
    CloseCode,
    Drain,
    JobError,
    NodeCancel,
    SessionPartial,
    SessionResult,
)
from pipeline.nodes.state.inbox import Envelope

if TYPE_CHECKING:
    from pipeline.nodes.gateway.instance import Instance

log = structlog.get_logger(__name__)
INLINE_BYTES = 128 * 1024
"""What is larger does not travel in an inbox, which is cut by the number of its entries, but has a key of its own."""


def request_id_of(request_key: str) -> str:
    """The session's own id of a request: keys begin with the token's id."""
    return request_key.partition(":")[2]


def answer(request_key: str, job_id: str, packed: bytes) -> tuple[SessionResult, tuple[bytes, ...]]:
    """The message to a session for what a job's result holds."""
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
    return message, tuple(parcel.parts)


class Delivery:
    """Source 004, "跨实例可靠投递": what must arrive goes by stream; whoever is here is sent it at once."""

    def __init__(self, instance: "Instance") -> None:
        self._at = instance

    # To homes and nodes

    async def tell(self, home: str, kind: str, body: dict[str, Any]) -> None:
        """Tell the instance that is home to a job. A dead one is not told: who waits for the job adopts it."""
        if home == self._at.home:
            await self._handle(kind, body, b"", again=False)
        else:
            await self._at.state.inbox.send(home.partition("/")[0], kind, body)

    async def assign(self, job: HomeJob, node_id: str, timeout_ms: int) -> bool:
        """Give a job to a node. False: nobody knows where it is connected."""
        at = self._at
        if link := at.nodes.get(node_id):
            if link.token_id != job.node_token:
                return False
            request = job.request
            parcel = Parcel(
                {
                    "capability": request.capability,
                    "model": request.model,
                    "body": request.body,
                    "attachments": [one.model_dump() for one in request.attachments],
                },
                job.parts,
            )
            link.assign(assignment(job.id, job.attempt, timeout_ms, parcel), job.parts)
            return True
        packed = job.packed()
        body = {
            "node_id": node_id,
            "token_id": job.node_token,
            "job_id": job.id,
            "attempt": job.attempt,
            "timeout_ms": timeout_ms,
        }
        if len(packed) > INLINE_BYTES:
            await at.state.jobs.put_payload(job.id, packed)
            packed = b""
        return await self._to_owner_of_node(node_id, "assign", body, packed)

    async def to_node(self, node_id: str, message: NodeCancel | Drain) -> None:
        """A word to a node that is lost if the node is."""
        if link := self._at.nodes.get(node_id):
            link.say(message)
        elif isinstance(message, NodeCancel):
            body = {"node_id": node_id, "job_id": message.job_id, "attempt": message.attempt, "reason": message.reason}
            await self._to_owner_of_node(node_id, "cancel", body)

    async def _to_owner_of_node(
        self, node_id: str, kind: str, body: dict[str, Any], payload: bytes = b"", dead: str = ""
    ) -> bool:
        owner = await self._at.state.instances.owner_of_node(node_id)
        if not owner or owner in {self._at.instance_id, dead}:
            return False
        return await self._at.state.inbox.send(owner, kind, body, payload)

    # To sessions

    async def result(self, finished: Finished, packed: bytes) -> None:
        """The result of a job to all that wait for it. Whoever is not connected asks again, and gets it then."""
        at, job = self._at, finished.job
        at.dispatch.forget(job.job_id)
        if job.outcome != "ok":  # first: whoever gets the error may ask again at once
            await at.state.requests.forget(job.request_key, job.job_id)
        told = {at.instance_id}
        for session_id in finished.waiters:
            if link := at.sessions.get(session_id):
                link.result(answer(job.request_key, job.job_id, packed))
                continue
            owner = await at.state.instances.owner_of_session(session_id)
            if owner and owner != at.instance_id:
                told.add(owner)
                body = {"session_id": session_id, "request_key": job.request_key, "job_id": job.job_id}
                await at.state.inbox.send(owner, "result", body, packed if len(packed) <= INLINE_BYTES else b"")
        if job.home.partition("/")[0] not in told:
            await self.tell(job.home, "done", {"job_id": job.job_id})

    async def from_redis(self, job: Job) -> None:
        """A result that was kept, to the sessions here that wait for it."""
        packed = await self._at.state.jobs.result(job.job_id)
        if packed is None:
            return
        for link in list(self._at.sessions.values()):
            if link.waits_for(job.job_id):  # Redis has forgotten by now who does
                link.result(answer(job.request_key, job.job_id, packed))

    async def to_sessions_here(self, job: HomeJob, error: JobError) -> None:
        """Tell sessions of this instance that a job is lost; where Redis is empty, nobody else can be found."""
        for link in self._at.sessions.values():
            if link.waits_for(job.id):
                link.result((SessionResult(request_id=job.request.request_id, job_id=job.id, error=error), ()))

    async def partial(self, job: Job, attempt: int, text: str) -> None:
        """A piece of a result to all that wait for it."""
        at, request_id = self._at, request_id_of(job.request_key)
        for session_id in await at.state.jobs.waiters(job.job_id):
            if link := at.sessions.get(session_id):
                link.partial(SessionPartial(request_id=request_id, attempt=attempt, text=text))
                continue
            owner = await at.state.instances.owner_of_session(session_id)
            if owner and owner != at.instance_id:
                body = {"session_id": session_id, "request_id": request_id, "attempt": attempt, "text": text}
                await at.state.inbox.send_dispensable(owner, "partial", body)

    # From the inbox

    async def take(self, envelope: Envelope, *, again: bool, dead: str = "") -> None:
        """Do what another instance asks for. `again`: perhaps it was done before.

        What is for a node or session that has moved goes to where it is now; not to `dead`, from whose inbox it was
        taken, since it would only come from there once more.
        """
        await self._handle(envelope.kind, envelope.body, envelope.payload, again=again, dead=dead)

    async def _handle(self, kind: str, body: Mapping[str, Any], payload: bytes, *, again: bool, dead: str = "") -> None:
        at = self._at
        match kind:
            case "assign":
                await self._assigned(body, payload, again=again, dead=dead)
            case "cancel":
                message = NodeCancel(job_id=body["job_id"], attempt=body["attempt"], reason=body["reason"])
                if link := at.nodes.get(body["node_id"]):
                    link.say(message)
            case "result":
                await self._result_here(body, payload, dead)
            case "partial":
                if session := at.sessions.get(body["session_id"]):
                    request_id, attempt, text = body["request_id"], body["attempt"], body["text"]
                    session.partial(SessionPartial(request_id=request_id, attempt=attempt, text=text))
            case "reserved" | "spare" | "again" | "done":
                await self._home(kind, body["job_id"], body.get("node_id", ""))
            case _:
                await self._operate(kind, body)

    async def _home(self, kind: str, job_id: str, node_id: str) -> None:
        """What the home of a job is told."""
        dispatch = self._at.dispatch
        match kind:
            case "reserved":
                await dispatch.reserved(job_id, node_id)
            case "spare":
                await dispatch.spare(job_id, node_id)
            case "again":
                await dispatch.again(job_id, node_id)
            case "done":
                await dispatch.done(job_id)

    async def _operate(self, kind: str, body: Mapping[str, Any]) -> None:
        """What operators ask for, and other instances in their name."""
        at = self._at
        match kind:
            case "kick":
                await self._kick(body.get("node_id", ""), body.get("session_id", ""))
            case "drain_node":
                if node := at.nodes.get(body["node_id"]):
                    node.drain(body.get("reason", ""))
            case "close_node":
                if node := at.nodes.get(body["node_id"]):
                    node.close(CloseCode.UNAUTHORIZED, body.get("reason", "") or "its token was revoked")
            case "cancel_job":
                await at.cancel(body["job_id"])
            case "token_revoked":
                at.close_token(body["token_id"])
            case _:
                log.warning("inbox.unknown_kind", kind=kind[:40])

    async def _kick(self, node_id: str, session_id: str) -> None:
        """End what has connected elsewhere: not if it is here again, or if this was said to an instance that died."""
        at = self._at
        node, session = at.nodes.get(node_id), at.sessions.get(session_id)
        # One that is not known to be here yet takes itself after this was said.
        if node and node.owned and await at.state.instances.owner_of_node(node_id) != at.instance_id:
            node.close(CloseCode.REPLACED, "it is connected to another instance")
        if session and session.owned and await at.state.instances.owner_of_session(session_id) != at.instance_id:
            session.close(CloseCode.REPLACED, "it is connected to another instance")

    async def _assigned(self, body: Mapping[str, Any], payload: bytes, *, again: bool, dead: str) -> None:
        at = self._at
        job_id, node_id, attempt = body["job_id"], body["node_id"], body["attempt"]
        link = at.nodes.get(node_id)
        if link is None:
            await self._to_owner_of_node(node_id, "assign", dict(body), payload, dead)
            return
        if body.get("token_id", link.token_id) != link.token_id:  # instances of earlier versions send no token
            return  # another token owns the name now: the job's home gives the job to another node
        if again:  # the node may have had it, and be done with it
            job = await at.state.jobs.get(job_id)
            if job is None or job.attempt != attempt or job.node_id != node_id or job.state != "DISPATCHED":
                return
        payload = payload or await at.state.jobs.payload(job_id) or b""
        if payload:
            parcel = Parcel.unpack(payload)
            link.assign(assignment(job_id, attempt, body["timeout_ms"], parcel), parcel.parts)

    async def _result_here(self, body: Mapping[str, Any], payload: bytes, dead: str) -> None:
        at = self._at
        at.dispatch.forget(body["job_id"])
        link = at.sessions.get(body["session_id"])
        if link is None:
            owner = await at.state.instances.owner_of_session(body["session_id"])
            if owner and owner not in {at.instance_id, dead}:
                await at.state.inbox.send(owner, "result", dict(body), payload)
            return
        job = await at.state.jobs.get(body["job_id"])
        packed = payload or await at.state.jobs.result(body["job_id"])
        if job and packed:
            link.result(answer(job.request_key, job.job_id, packed))
