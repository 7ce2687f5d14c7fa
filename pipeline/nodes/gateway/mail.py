"""What other instances and operators tell this one through its inbox, and what was told to instances that died."""

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
    """Reads the inbox of one instance, and does what its messages ask for."""

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
        """`reclaim_ms`: after this time, try a message again that was given out and not handled."""
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
        """Handle the next messages."""
        await self._inbox.acknowledge(await self._handled(await self._inbox.read(), repeated=False))

    async def reclaim(self) -> None:
        """Try again what failed, until it counts as a dead letter."""
        await self._inbox.acknowledge(await self._handled(await self._inbox.reclaim(self._reclaim_ms), repeated=True))

    async def drain_the_dead(self) -> None:
        """What was sent to an instance that died is taken by another. Rule: docs/sources/nodes.md#streams."""
        for other in await self._instances.all():
            if other.alive or other.instance_id == self._instance_id:
                continue
            while envelopes := await self._inbox.take_dead(other.instance_id):
                done = await self._handled(envelopes, repeated=True, dead=other.instance_id)
                await self._inbox.acknowledge_dead(other.instance_id, done)
            if envelopes is not None:
                await self._inbox.close_dead(other.instance_id)

    async def _handled(self, envelopes: list[Envelope], *, repeated: bool, dead: str = "") -> list[str]:
        """Which of the messages were handled. The others come again, until they count as dead letters.

        `repeated`: perhaps this was done before. What is for a node or session that has moved goes to where it is now;
        not to `dead`, from whose inbox it was taken, since it would only come from there once more.
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
                await self._assigned(body, payload, repeated=repeated, dead=dead)
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
                await self._dispatch.hear(kind, body["job_id"], body.get("node_id", ""))
            case _:
                await self._operate(kind, body)

    async def _operate(self, kind: str, body: Mapping[str, Any]) -> None:
        """What operators ask for, and other instances in their name."""
        match kind:
            case "kick":
                await self._nodes.kick(body.get("node_id", ""))
                await self._sessions.kick(body.get("session_id", ""))
            case "drain_node":
                if node := self._nodes.get(body["node_id"]):
                    node.drain(body.get("reason", ""))
            case "close_node":
                if node := self._nodes.get(body["node_id"]):
                    node.close(CloseCode.UNAUTHORIZED, body.get("reason", "") or "its token was revoked")
            case "cancel_job":
                await self._dispatch.cancel(body["job_id"], "cancelled by the operator")
            case "token_revoked":
                self.close_token(body["token_id"])
            case _:
                log.warning("inbox.unknown_kind", kind=kind[:40])

    def close_token(self, token_id: str) -> None:
        """End every connection of a token."""
        for links in (self._nodes, self._sessions):
            links.close_all(CloseCode.UNAUTHORIZED, "its token was revoked or has expired", token_id)

    async def _assigned(self, body: Mapping[str, Any], payload: bytes, *, repeated: bool, dead: str) -> None:
        job_id, node_id, attempt = body["job_id"], body["node_id"], body["attempt"]
        link = self._nodes.get(node_id)
        if link is None:
            await self._delivery.to_owner_of_node("assign", dict(body), payload, dead)
            return
        if body.get("token_id", link.token_id) != link.token_id:  # instances of earlier versions send no token
            return  # another token owns the name now: the job's home gives the job to another node
        if repeated:  # the node may have had it, and be done with it
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
