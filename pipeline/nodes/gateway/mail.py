"""Messages of other instances and operators, from this instance's inbox and from those of dead instances."""

from collections.abc import Mapping
from typing import Any

import structlog
from redis import RedisError

from pipeline.nodes.gateway.delivery import Delivery, answer
from pipeline.nodes.gateway.dispatch import Dispatch
from pipeline.nodes.gateway.home_job import assignment
from pipeline.nodes.gateway.links import Links, NodeLink, SessionLink
from pipeline.nodes.parcel import Parcel
from pipeline.nodes.protocol import CloseCode, NodeCancel, SessionPartial
from pipeline.nodes.state.inbox import Envelope, Inbox
from pipeline.nodes.state.instances import Instances
from pipeline.nodes.state.jobs import Jobs

log = structlog.get_logger(__name__)


class Mail:
    """Reads the inbox of one instance, and handles its messages."""

    def __init__(
        self,
        instance_id: str,
        inbox: Inbox,
        instances: Instances,
        nodes: Links[NodeLink],
        sessions: Links[SessionLink],
        jobs: Jobs,
        delivery: Delivery,
        dispatch: Dispatch,
        reclaim_ms: int,
    ) -> None:
        """`reclaim_ms`: the time after which `reclaim` retries an unhandled message."""
        self._instance_id = instance_id
        self._inbox = inbox
        self._instances = instances
        self._nodes = nodes
        self._sessions = sessions
        self._jobs = jobs
        self._delivery = delivery
        self._dispatch = dispatch
        self._reclaim_ms = reclaim_ms

    async def read(self) -> None:
        """Wait for the next messages of this instance's inbox, handle them, and delete those that did not fail."""
        await self._inbox.acknowledge(await self._handled(await self._inbox.read(), repeated=False))

    async def reclaim(self) -> None:
        """Handle failed messages again; after `dlq_max_deliveries` deliveries they are left for the dead letters."""
        await self._inbox.acknowledge(await self._handled(await self._inbox.reclaim(self._reclaim_ms), repeated=True))

    async def drain_the_dead(self) -> None:
        """Handle the messages in dead instances' inboxes, and close the empty ones. Rule:
        docs/sources/nodes.md#streams."""
        for other in await self._instances.all():
            if other.alive or other.instance_id == self._instance_id:
                continue
            while envelopes := await self._inbox.take_dead(other.instance_id):
                done = await self._handled(envelopes, repeated=True, dead=other.instance_id)
                await self._inbox.acknowledge_dead(other.instance_id, done)
            if envelopes is not None:
                await self._inbox.close_dead(other.instance_id)

    async def _handled(self, envelopes: list[Envelope], *, repeated: bool, dead: str = "") -> list[str]:
        """Handle messages. Returns the ids of those that did not fail.

        `repeated`: an instance may have handled them before. `dead`: the instance from whose inbox they come. Messages
        for a node or session that has moved are forwarded to its owner, but not to `dead`.
        """
        done = []
        for envelope in envelopes:
            try:
                await self._handle(envelope.kind, envelope.body, envelope.payload, repeated=repeated, dead=dead)
            except RedisError:
                raise
            except Exception:
                log.exception("inbox.not_done", kind=envelope.kind[:40], entry=envelope.id)
                continue
            done.append(envelope.id)
        return done

    async def _handle(self, kind: str, body: Mapping[str, Any], payload: bytes, *, repeated: bool, dead: str) -> None:
        match kind:
            case "assign":
                await self._assign(body, payload, repeated=repeated, dead=dead)
            case "cancel":
                if node := self._nodes.get(body["node_id"]):
                    node.cancel(NodeCancel(job_id=body["job_id"], attempt=body["attempt"], reason=body["reason"]))
            case "result":
                await self._result(body, payload, dead)
            case "partial":
                if session := self._sessions.get(body["session_id"]):
                    request_id, attempt, text = body["request_id"], body["attempt"], body["text"]
                    session.partial(SessionPartial(request_id=request_id, attempt=attempt, text=text))
            case "reserved" | "spare" | "again" | "done":
                await self._dispatch.notify(kind, body["job_id"], body.get("node_id", ""))
            case _:
                await self._operate(kind, body)

    async def _operate(self, kind: str, body: Mapping[str, Any]) -> None:
        """Handle an operator's message, or a `kick` of another instance."""
        match kind:
            case "kick":
                await self._nodes.kick(body.get("node_id", ""))
                await self._sessions.kick(body.get("session_id", ""))
            case "drain_node":
                if node := self._nodes.get(body["node_id"]):
                    node.drain(body.get("reason", ""))
            case "close_node":
                if node := self._nodes.get(body["node_id"]):
                    node.close(CloseCode.UNAUTHORIZED, body.get("reason", "") or "the token was revoked")
            case "cancel_job":
                await self._dispatch.cancel(body["job_id"], "cancelled by the operator")
            case "token_revoked":
                self.close_token(body["token_id"])
            case _:
                log.warning("inbox.unknown_kind", kind=kind[:40])

    def close_token(self, token_id: str) -> None:
        """Close every connection of a token to this instance. `token_id`: its id, not its name."""
        for links in (self._nodes, self._sessions):
            links.close_all(CloseCode.UNAUTHORIZED, "the token was revoked or has expired", token_id)

    async def _assign(self, body: Mapping[str, Any], payload: bytes, *, repeated: bool, dead: str) -> None:
        job_id, node_id, attempt = body["job_id"], body["node_id"], body["attempt"]
        link = self._nodes.get(node_id)
        if link is None:
            await self._delivery.to_owner_of_node("assign", dict(body), payload, dead)
            return
        if body.get("token_id", link.token_id) != link.token_id:  # instances of earlier versions send no token
            return  # the name has another token now, so the job's home gives the job to another node
        if repeated:  # skip an assignment that the node has received already
            job = await self._jobs.get(job_id)
            if job is None or job.attempt != attempt or job.node_id != node_id or job.state != "DISPATCHED":
                return
        payload = payload or await self._jobs.payload(job_id) or b""
        if payload:
            parcel = Parcel.unpack(payload)
            link.assign(assignment(job_id, attempt, body["timeout_ms"], parcel), parcel.parts)

    async def _result(self, body: Mapping[str, Any], payload: bytes, dead: str) -> None:
        job_id, session_id = body["job_id"], body["session_id"]
        self._dispatch.forget(job_id)
        link = self._sessions.get(session_id)
        if link is None:
            if owner := await self._sessions.elsewhere(session_id, dead):
                await self._inbox.send(owner, "result", dict(body), payload)
            return
        job = await self._jobs.get(job_id)
        packed = payload or await self._jobs.result(job_id)
        if job and packed:
            answer(link, job.request_key, job.job_id, packed)
