"""What operators ask of the gateway: plain functions for the command line, the API and beat.

The state is asynchronous, so each call opens a connection of its own, and closes it. Nobody waits longer than
`PATIENCE_S` for a Redis that is away: then all of these raise `RedisError`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog
from redis import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from pipeline.engine.errors import UserError
from pipeline.engine.wire import VIEW
from pipeline.nodes import names as node_names
from pipeline.nodes import tokens
from pipeline.nodes.job import DONE, Finished, Job, JobState
from pipeline.nodes.protocol import CANCELLED, JobError
from pipeline.nodes.settings import gateway_settings
from pipeline.nodes.state import dlq as letters
from pipeline.nodes.state import upkeep
from pipeline.nodes.state.inbox import Inbox
from pipeline.nodes.state.instances import Instances
from pipeline.nodes.state.jobs import Jobs
from pipeline.nodes.state.queue import Waiting
from pipeline.nodes.state.requests import Requests
from pipeline.nodes.state.slots import Slots
from pipeline.nodes.state.snapshots import Snapshots
from pipeline.nodes.state.store import Store
from pipeline.nodes.state.upkeep import Tended
from pipeline.nodes.tokens import TokenView
from pipeline.nodes.views import DeadLetterView, GatewayView, InstanceView, JobView, NodeStatus, NodeView
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
Answer = TypeVar("Answer")
PATIENCE_S = 15.0
_TELLING_S = 3.0
"""For word of what instances find out by themselves a little later."""
_OPERATOR = "operator"
"""Who sends messages to instances. Nobody reads an inbox of this name."""


@dataclass(frozen=True)
class Revocation:
    """What became of a node that was revoked."""

    __pydantic_config__ = VIEW
    node_id: str
    was_connected: bool
    tokens: list[TokenView]
    """Those that were for this node alone; they are revoked."""
    shared_token: TokenView | None
    """The one it was connected with, if others may use it too: it is as good as before."""


def is_used(context: Context) -> bool:
    """Whether anybody could ever connect: without a token there is no gateway to look after."""
    return bool(tokens.list_tokens(context))


def is_offline(context: Context) -> bool:
    """Whether the gateway shares an embedded Redis that is down: nobody would start it."""
    where = gateway_settings(context.settings).redis
    return where.mode == "single" and not where.url and not context.online


def require_redis(context: Context) -> None:
    """Raise `UserError` if the gateway `is_offline`."""
    if is_offline(context):
        raise UserError(
            "no Redis is running here: `penstock up` starts one; PENSTOCK_REDIS_URL names another", code="offline"
        )


def _ask(context: Context, question: Callable[[Store], Awaitable[Answer]], patience_s: float = PATIENCE_S) -> Answer:
    require_redis(context)
    settings = gateway_settings(context.settings)

    async def answered() -> Answer:
        async with Store(settings, context.settings.effective_redis_url) as store:
            asked = asyncio.ensure_future(question(store))
            done, _ = await asyncio.wait({asked}, timeout=patience_s)
            if not done:
                # Not awaited: its own cleaning up may hang as well. It ends with the loop.
                asked.cancel()
                raise RedisTimeoutError(f"the gateway's Redis did not answer within {patience_s:g} s")
            return asked.result()

    return asyncio.run(answered())


def _token_names(context: Context) -> dict[str, str]:
    return {token.id: token.name for token in tokens.list_tokens(context)}


# Nodes


def nodes(context: Context) -> list[NodeView]:
    """Those that are connected, and those that were lately."""
    names = _token_names(context)

    async def listed(store: Store) -> list[NodeView]:
        return [NodeView.of(found, names) for found in await Snapshots(store).listed()]

    return sorted(_ask(context, listed), key=lambda node: (node.status == NodeStatus.GONE, node.name, node.node_id))


def node(context: Context, node_id: str) -> NodeView:
    """One node with the jobs that hold its slots. Raises `UserError`."""
    names = _token_names(context)

    async def found(store: Store) -> NodeView:
        known = {one.node_id: one for one in await Snapshots(store).listed()}
        if node_id not in known:
            raise _unknown_node(node_id)
        return NodeView.of(known[node_id], names, sorted(await Slots(store).held(node_id)))

    return _ask(context, found)


def drain(context: Context, node_id: str, reason: str = "") -> NodeView:
    """Ask a node to finish what it has, and to end. Raises `UserError` for one that is not connected."""
    names = _token_names(context)

    async def asked(store: Store) -> NodeView:
        owner = await Instances(store).nodes.owner(node_id)
        body = {"node_id": node_id, "reason": reason or "drained by the operator"}
        if not owner or not await Inbox(store, _OPERATOR).send(owner, "drain_node", body):
            raise _unknown_node(node_id)
        known = {one.node_id: one for one in await Snapshots(store).all()}
        if node_id not in known:  # it has come this moment
            return NodeView(node_id, NodeStatus.CONNECTED, None, instance_id=owner)
        return NodeView.of(known[node_id], names, sorted(await Slots(store).held(node_id)))

    return _ask(context, asked)


def revoke(context: Context, node_id: str) -> Revocation:
    """Close a node's connection now, and revoke the tokens that are for it alone. Its jobs go to other nodes.

    Raises `UserError` for a node that nobody knows.
    """
    now, known = context.db.now(), tokens.list_tokens(context)
    own = [token for token in known if token.node_id == node_id and token.usable(now)]
    for token in own:  # first: so that it cannot come back, whatever becomes of the rest
        tokens.revoke(context, token.id)

    async def closed(store: Store) -> tuple[bool, str]:
        owner = await Instances(store).nodes.owner(node_id)
        if not owner and not own:
            raise _unknown_node(node_id)
        seen = {one.node_id: one.token_id for one in await Snapshots(store).all()}
        for token in own:
            await _tell_all(store, "token_revoked", {"token_id": token.id})
        if owner:
            body = {"node_id": node_id, "reason": "revoked by the operator"}
            await Inbox(store, _OPERATOR).send(owner, "close_node", body)
        return bool(owner), seen.get(node_id, "")

    was_connected, token_id = _ask(context, closed)
    shared = next((token for token in known if token.id == token_id and not token.node_id), None)
    return Revocation(node_id, was_connected, own, shared)


def free(context: Context, node_id: str) -> None:
    """Free a name: the next token that registers a node by it owns it. The jobs of the missing node go to other nodes.

    Raises `UserError` if the node is connected, or if no token owns the name.
    """
    if node_id not in node_names.all_names(context):
        raise UserError(f"no token has used the name {node_id}", code="unknown_node")

    async def is_connected(store: Store) -> bool:
        return bool(await Instances(store).nodes.owner(node_id))

    if _ask(context, is_connected):
        ending = f"end it first with `penstock nodes drain {node_id}` or `penstock nodes revoke {node_id}`"
        raise UserError(f"the node {node_id} is connected: {ending}", code="node_connected")
    node_names.free(context, node_id)


def revoke_token(context: Context, name_or_id: str) -> TokenView:
    """End a token, and every connection with it. Raises `UserError` for none or several of that name."""
    ended = tokens.revoke(context, name_or_id)

    async def told(store: Store) -> None:
        await _tell_all(store, "token_revoked", {"token_id": ended.id})

    try:
        _ask(context, told, _TELLING_S)
    except (RedisError, UserError) as error:  # instances look for themselves, every few seconds
        log.warning("token.not_told", token=ended.id, error=type(error).__name__)
    return ended


def _unknown_node(node_id: str) -> UserError:
    return UserError(f"no node with the id {node_id} is connected; see `penstock nodes list`", code="unknown_node")


async def _tell_all(store: Store, kind: str, body: dict[str, str]) -> None:
    for instance_id in await Instances(store).living():
        await Inbox(store, _OPERATOR).send(instance_id, kind, dict(body))


# Jobs


def jobs(context: Context, job_state: JobState | None = None, limit: int = 100) -> list[JobView]:
    """The newest jobs first."""
    names = _token_names(context)

    async def listed(store: Store) -> list[JobView]:
        return [JobView.of(job, names) for job in await Jobs(store).list(state=job_state, limit=limit)]

    return _ask(context, listed)


def job(context: Context, job_id: str) -> JobView:
    """One job. Raises `UserError`."""
    names = _token_names(context)

    async def found(store: Store) -> JobView:
        return JobView.of(await _job(store, job_id), names)

    return _ask(context, found)


def cancel(context: Context, job_id: str) -> JobView:
    """Ask the gateway to end a job, whoever waits for it: they get an error. Harmless if it has ended.

    If no instance is there to do that, the job ends here. Raises `UserError` for an unknown one.
    """
    names = _token_names(context)

    async def ended(store: Store) -> JobView:
        found = await _job(store, job_id)
        if found.state not in DONE and not await _ask_to_cancel(store, found):
            found = (await _cancel_here(store, found)).job
        return JobView.of(found, names)

    return _ask(context, ended)


async def _job(store: Store, job_id: str) -> Job:
    found = await Jobs(store).get(job_id)
    if found is None:
        raise UserError(f"there is no job {job_id}; jobs are kept for some minutes after their end", code="unknown_job")
    return found


async def _ask_to_cancel(store: Store, found: Job) -> bool:
    """Any instance can, but the one that schedules the job knows best."""
    living = list(await Instances(store).living())
    home = found.home.partition("/")[0]
    for instance_id in sorted(living, key=lambda one: one != home):
        if await Inbox(store, _OPERATOR).send(instance_id, "cancel_job", {"job_id": found.job_id}):
            return True
    return False


async def _cancel_here(store: Store, found: Job) -> Finished:
    error = JobError(code=CANCELLED, message="cancelled by the operator", kind="cancelled")
    ended = await Jobs(store).end(found.job_id, error)
    if ended is None:  # it has ended meanwhile
        return Finished(await _job(store, found.job_id))
    await Requests(store).forget(found.request_key, found.job_id)
    if found.node_id:
        await Slots(store).release(found.node_id, found.job_id)
    return ended[0]


# Dead letters


def dlq(context: Context, limit: int = 100) -> list[DeadLetterView]:
    """Messages between instances that nobody could handle, the newest first."""

    async def listed(store: Store) -> list[DeadLetterView]:
        return [DeadLetterView.of(entry) for entry in await letters.dlq(store, limit)]

    return _ask(context, listed)


def replay(context: Context, instance_id: str, letter_id: str) -> None:
    """Put a dead letter back into its inbox; if its instance is gone, another one takes it. Raises `UserError`."""
    if not _ask(context, lambda store: letters.replay(store, instance_id, letter_id)):
        raise _unknown_letter(instance_id, letter_id)


def drop(context: Context, instance_id: str, letter_id: str) -> None:
    """Delete a dead letter. Raises `UserError`."""
    if not _ask(context, lambda store: letters.drop(store, instance_id, letter_id)):
        raise _unknown_letter(instance_id, letter_id)


def _unknown_letter(instance_id: str, letter_id: str) -> UserError:
    return UserError(f"{instance_id} has no dead letter {letter_id}; see `penstock dlq list`", code="unknown_letter")


# All together


def status(context: Context, patience_s: float = PATIENCE_S) -> GatewayView:
    """How the gateway stands."""

    async def standing(store: Store) -> GatewayView:
        known = await Instances(store).all()
        messages = await store.batch([("XLEN", store.keys.inbox(one.instance_id)) for one in known], "xlen")
        instances = [InstanceView.of(one, int(waiting)) for one, waiting in zip(known, messages, strict=True)]
        listed = [NodeView.of(one, {}) for one in await Snapshots(store).listed()]
        there = [one for one in listed if one.status != NodeStatus.GONE]
        counts = await Jobs(store).counts()
        return GatewayView(
            instances,
            {status: sum(one.status == status for one in listed) for status in NodeStatus},
            slots=sum(one.slots for one in there),
            used=sum(one.used for one in there),
            sessions=sum(one.sessions for one in instances),
            jobs={one: counts.get(one, 0) for one in JobState},
            waiting=await Waiting(store).pools(),
            inbox_messages=sum(one.messages for one in instances),
            dead_letters=await letters.dlq_size(store),
            dead_letters_moved=int(await store.do("GET", store.keys.dlq_moved) or 0),
        )

    return _ask(context, standing, patience_s)


def tend(context: Context, patience_s: float = PATIENCE_S) -> Tended:
    """Do what time alone asks for: dead letters, nodes long gone, slots of nobody, jobs that nobody ends."""

    async def tended(store: Store) -> Tended:
        done = await upkeep.tend(store)
        if done.dlq_moved:
            await store.do("INCRBY", store.keys.dlq_moved, done.dlq_moved)
        return done

    return _ask(context, tended, patience_s)
