"""An operator's calls to the gateway: synchronous functions for the command line, the API and beat.

The state is asynchronous, so each call opens and closes its own connection. If Redis does not answer within
`PATIENCE_S`, the call raises `RedisError`.
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
from pipeline.nodes.state.upkeep import UpkeepCounts
from pipeline.nodes.tokens import TokenView
from pipeline.nodes.views import DeadLetterView, GatewayView, InstanceView, JobView, NodeStatus, NodeView
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
Answer = TypeVar("Answer")
PATIENCE_S = 15.0
_NOTIFY_S = 3.0
"""The patience for a notification that only speeds up what instances detect within seconds."""
_OPERATOR = "operator"
"""The sender's name in messages to instances. No instance reads an inbox of this name."""


@dataclass(frozen=True)
class Revocation:
    """The outcome of revoking a node."""

    __pydantic_config__ = VIEW
    node_id: str
    was_connected: bool
    tokens: list[TokenView]
    """The revoked tokens: those restricted to this node."""
    shared_token: TokenView | None
    """The token of the node's connection if other nodes may use it too. It stays valid."""


def is_used(context: Context) -> bool:
    """Whether any token exists, usable or not. Without one no client can ever connect, so the gateway needs no
    upkeep."""
    return bool(tokens.list_tokens(context))


def is_offline(context: Context) -> bool:
    """Whether the gateway uses Penstock's own embedded Redis, and that is not running. Asks no Redis, and starts
    none."""
    redis = gateway_settings(context.settings).redis
    return redis.mode == "single" and not redis.url and not context.online


def require_redis(context: Context) -> None:
    """Raise `UserError` if the gateway `is_offline`."""
    if is_offline(context):
        raise UserError(
            "no Redis is running here: `penstock up` starts one; PENSTOCK_REDIS_URL names another", code="offline"
        )


def _call(context: Context, operation: Callable[[Store], Awaitable[Answer]], patience_s: float = PATIENCE_S) -> Answer:
    require_redis(context)
    settings = gateway_settings(context.settings)

    async def run() -> Answer:
        async with Store(settings, context.settings.effective_redis_url) as store:
            task = asyncio.ensure_future(operation(store))
            done, _ = await asyncio.wait({task}, timeout=patience_s)
            if not done:
                # Do not await the task: its cleanup may hang as well. It ends with the loop.
                task.cancel()
                raise RedisTimeoutError(f"the gateway's Redis did not answer within {patience_s:g} s")
            return task.result()

    return asyncio.run(run())


def _token_names(context: Context) -> dict[str, str]:
    return {token.id: token.name for token in tokens.list_tokens(context)}


# Nodes


def nodes(context: Context) -> list[NodeView]:
    """List the connected nodes, then those that left lately."""
    names = _token_names(context)

    async def read(store: Store) -> list[NodeView]:
        return [NodeView.of(state, names) for state in await Snapshots(store).listed()]

    return sorted(_call(context, read), key=lambda node: (node.status == NodeStatus.GONE, node.name, node.node_id))


def node(context: Context, node_id: str) -> NodeView:
    """Return a node, connected or gone lately, with the ids of the jobs that hold its slots. Raises `UserError` for an
    unknown node."""
    names = _token_names(context)

    async def read(store: Store) -> NodeView:
        known = {state.node_id: state for state in await Snapshots(store).listed()}
        if node_id not in known:
            raise _unknown_node(node_id)
        return NodeView.of(known[node_id], names, sorted(await Slots(store).held(node_id)))

    return _call(context, read)


def drain(context: Context, node_id: str, reason: str = "") -> NodeView:
    """Ask a connected node to finish its jobs and to exit, without waiting for it. Returns the node as known now.
    Raises `UserError` if it is not connected."""
    names = _token_names(context)

    async def send(store: Store) -> NodeView:
        owner = await Instances(store).nodes.owner(node_id)
        body = {"node_id": node_id, "reason": reason or "drained by the operator"}
        if not owner or not await Inbox(store, _OPERATOR).send(owner, "drain_node", body):
            raise _unknown_node(node_id)
        known = {state.node_id: state for state in await Snapshots(store).all()}
        if node_id not in known:  # its instance has not written the first snapshot yet
            return NodeView(node_id, NodeStatus.CONNECTED, None, instance_id=owner)
        return NodeView.of(known[node_id], names, sorted(await Slots(store).held(node_id)))

    return _call(context, send)


def revoke(context: Context, node_id: str) -> Revocation:
    """Revoke the tokens restricted to a node, and ask its instance to close its connection now. Its jobs go to other
    nodes.

    A token that other nodes may use stays valid, so a node with such a token can connect again. Raises `UserError` if
    the node is not connected and no token is restricted to it.
    """
    now, known = context.db.now(), tokens.list_tokens(context)
    own = [token for token in known if token.node_id == node_id and token.usable(now)]
    for token in own:  # first, so that the node cannot reconnect even if a later step fails
        tokens.revoke(context, token.id)

    async def close(store: Store) -> tuple[bool, str]:
        owner = await Instances(store).nodes.owner(node_id)
        if not owner and not own:
            raise _unknown_node(node_id)
        token_ids = {state.node_id: state.token_id for state in await Snapshots(store).all()}
        for token in own:
            await _notify_all(store, "token_revoked", {"token_id": token.id})
        if owner:
            body = {"node_id": node_id, "reason": "revoked by the operator"}
            await Inbox(store, _OPERATOR).send(owner, "close_node", body)
        return bool(owner), token_ids.get(node_id, "")

    was_connected, token_id = _call(context, close)
    shared = next((token for token in known if token.id == token_id and not token.node_id), None)
    return Revocation(node_id, was_connected, own, shared)


def free(context: Context, node_id: str) -> None:
    """Free the name of a missing node: the next token that registers a node by it owns it.

    Raises `UserError` if the node is connected, or if no token owns the name.
    """
    if node_id not in node_names.all_names(context):
        raise UserError(f"no token has used the name {node_id}", code="unknown_node")

    async def is_connected(store: Store) -> bool:
        return bool(await Instances(store).nodes.owner(node_id))

    if _call(context, is_connected):
        ending = f"end it first with `penstock nodes drain {node_id}` or `penstock nodes revoke {node_id}`"
        raise UserError(f"the node {node_id} is connected: {ending}", code="node_connected")
    node_names.free(context, node_id)


def revoke_token(context: Context, name_or_id: str) -> TokenView:
    """Revoke the token with this name, id or beginning of an id, and ask all instances to close its connections;
    without Redis they notice within seconds.

    Raises `UserError` for no match or several.
    """
    revoked = tokens.revoke(context, name_or_id)

    async def notify(store: Store) -> None:
        await _notify_all(store, "token_revoked", {"token_id": revoked.id})

    try:
        _call(context, notify, _NOTIFY_S)
    except (RedisError, UserError) as error:  # instances check the tokens of their connections every few seconds
        log.warning("token.not_told", token=revoked.id, error=type(error).__name__)
    return revoked


def _unknown_node(node_id: str) -> UserError:
    return UserError(f"no node with the id {node_id} is connected; see `penstock nodes list`", code="unknown_node")


async def _notify_all(store: Store, kind: str, body: dict[str, str]) -> None:
    for instance_id in await Instances(store).living():
        await Inbox(store, _OPERATOR).send(instance_id, kind, dict(body))


# Jobs


def jobs(context: Context, job_state: JobState | None = None, limit: int = 100) -> list[JobView]:
    """List at most `limit` jobs, only those in `job_state` if given, the newest first."""
    names = _token_names(context)

    async def read(store: Store) -> list[JobView]:
        return [JobView.of(job, names) for job in await Jobs(store).list(state=job_state, limit=limit)]

    return _call(context, read)


def job(context: Context, job_id: str) -> JobView:
    """Return a job. Raises `UserError` for an unknown job."""
    names = _token_names(context)

    async def read(store: Store) -> JobView:
        return JobView.of(await _job(store, job_id), names)

    return _call(context, read)


def cancel(context: Context, job_id: str) -> JobView:
    """Ask a living instance to cancel a job, or cancel it here if none lives: every waiting session gets an error.
    Harmless if the job is done.

    Returns the job as it was before that instance acts, or after being cancelled here. Raises `UserError` for an
    unknown job.
    """
    names = _token_names(context)

    async def end(store: Store) -> JobView:
        job = await _job(store, job_id)
        if job.state not in DONE and not await _ask_to_cancel(store, job):
            job = (await _cancel_here(store, job)).job
        return JobView.of(job, names)

    return _call(context, end)


async def _job(store: Store, job_id: str) -> Job:
    job = await Jobs(store).get(job_id)
    if job is None:
        raise UserError(f"there is no job {job_id}; jobs are kept for some minutes after their end", code="unknown_job")
    return job


async def _ask_to_cancel(store: Store, job: Job) -> bool:
    """Send the request to the job's home if it lives, else to any instance. False if no instance lives."""
    living = list(await Instances(store).living())
    home = job.home.partition("/")[0]
    for instance_id in sorted(living, key=lambda instance_id: instance_id != home):
        if await Inbox(store, _OPERATOR).send(instance_id, "cancel_job", {"job_id": job.job_id}):
            return True
    return False


async def _cancel_here(store: Store, job: Job) -> Finished:
    error = JobError(code=CANCELLED, message="cancelled by the operator", kind="cancelled")
    ended = await Jobs(store).end(job.job_id, error)
    if ended is None:  # the job finished since it was read
        return Finished(await _job(store, job.job_id))
    await Requests(store).forget(job.request_key, job.job_id)
    if job.node_id:
        await Slots(store).release(job.node_id, job.job_id)
    return ended[0]


# Dead letters


def dlq(context: Context, limit: int = 100) -> list[DeadLetterView]:
    """List the dead letters of all instances, the newest first."""

    async def read(store: Store) -> list[DeadLetterView]:
        return [DeadLetterView.of(entry) for entry in await letters.dlq(store, limit)]

    return _call(context, read)


def replay(context: Context, instance_id: str, letter_id: str) -> None:
    """Move a dead letter back into its instance's inbox; if the instance is dead, another one handles it. Raises
    `UserError` for an unknown letter."""
    if not _call(context, lambda store: letters.replay(store, instance_id, letter_id)):
        raise _unknown_letter(instance_id, letter_id)


def drop(context: Context, instance_id: str, letter_id: str) -> None:
    """Delete a dead letter. Raises `UserError` for an unknown letter."""
    if not _call(context, lambda store: letters.drop(store, instance_id, letter_id)):
        raise _unknown_letter(instance_id, letter_id)


def _unknown_letter(instance_id: str, letter_id: str) -> UserError:
    return UserError(f"{instance_id} has no dead letter {letter_id}; see `penstock dlq list`", code="unknown_letter")


# All together


def status(context: Context, patience_s: float = PATIENCE_S) -> GatewayView:
    """Return the state of the gateway over all its instances: nodes, slots, sessions, jobs, lines and dead letters."""

    async def read(store: Store) -> GatewayView:
        known = await Instances(store).all()
        lengths = await store.batch([("XLEN", store.keys.inbox(instance.instance_id)) for instance in known], "xlen")
        instances = [InstanceView.of(instance, int(length)) for instance, length in zip(known, lengths, strict=True)]
        nodes = [NodeView.of(state, {}) for state in await Snapshots(store).listed()]
        connected = [node for node in nodes if node.status != NodeStatus.GONE]
        counts = await Jobs(store).counts()
        return GatewayView(
            instances,
            {status: sum(node.status == status for node in nodes) for status in NodeStatus},
            slots=sum(node.slots for node in connected),
            used=sum(node.used for node in connected),
            sessions=sum(instance.sessions for instance in instances),
            jobs={state: counts.get(state, 0) for state in JobState},
            waiting=await Waiting(store).pools(),
            inbox_messages=sum(instance.messages for instance in instances),
            dead_letters=await letters.dlq_size(store),
            dead_letters_moved=int(await store.do("GET", store.keys.dlq_moved) or 0),
        )

    return _call(context, read, patience_s)


def tend(context: Context, patience_s: float = PATIENCE_S) -> UpkeepCounts:
    """Run the upkeep once: move dead letters, forget stale nodes, free orphaned slots, end overdue jobs. Returns
    counts, all 0 if another process has the lease for it."""
    return _call(context, upkeep.tend, patience_s)
