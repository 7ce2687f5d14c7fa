"""`/api/v1/nodes`, `/jobs`, `/dlq` and `/gateway`: inference nodes, and what goes through the gateway.

Not to be taken for the nodes of screenshots, which are pieces of context.
"""

from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import ConfigDict, Field, StringConstraints

from pipeline.interfaces.http.dependencies import InContext, admin, reader
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import CredentialName, HexId, LifeDays, Limit, Line, Strict
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.pages import Page
from pipeline.interfaces.http.shapes import Shape, example
from pipeline.interfaces.rest.live_settings import seeing
from pipeline.nodes import service, tokens
from pipeline.nodes.job import JobState
from pipeline.nodes.tokens import TokenKind
from pipeline.nodes.views import NodeStatus

router = APIRouter(tags=["nodes"], route_class=JsonRoute)
_ID = r"^[A-Za-z0-9_.-]{1,64}$"
GivenId = Annotated[str, Path(pattern=_ID)]
LetterId = Annotated[str, Path(pattern=r"^[0-9]{1,20}-[0-9]{1,20}$")]
_TOKEN = {"token_id": "0123456789abcdef", "token": "desk"}


class OfferShape(Shape):
    """One thing that a node can do."""

    capability: str = Field(description="`vision`, `text`, `embeddings` or `page`.")
    models: list[str] = Field(description="`*`: any.")


class NodeShape(Shape):
    """A node: a machine that does AI work. Of one that is gone, only id, name and when it was seen are known."""

    model_config = example(
        node_id="desk-1",
        status="connected",
        last_seen_at="2026-11-22T10:00:00Z",
        name="the one below the desk",
        instance_id="host-4242-1f09ab",
        **_TOKEN,
        slots=4,
        used=1,
        software="penstock 0.1",
        offers=[{"capability": "vision", "models": ["qwen2-vl"]}],
        latency_ms={"vision": 1830.0},
        connected_at="2026-11-22T08:00:00Z",
        jobs=["5f0c1b9e5f0c1b9e5f0c1b9e5f0c1b9e"],
    )
    node_id: str
    status: NodeStatus
    last_seen_at: datetime | None
    name: str
    instance_id: str = Field(description="The instance of the gateway that it is connected to.")
    token_id: str
    token: str = Field(description="Its token's name.")
    slots: int = Field(description="Jobs that it does at once.")
    used: int
    offers: list[OfferShape]
    latency_ms: dict[str, float] = Field(description="By capability: how long jobs took lately.")
    software: str
    connected_at: datetime | None
    jobs: list[str] = Field(description="Whom its slots are reserved for; empty in lists.")


class TokenShape(Shape):
    """A token. Its secret is told once, when it is made."""

    model_config = example(
        id="0123456789abcdef",
        name="desk",
        kind="node",
        node_id="",
        created_at="2026-11-22T10:00:00Z",
        last_used_at=None,
        expires_at=None,
        revoked_at=None,
    )
    id: str
    name: str
    kind: TokenKind
    node_id: str = Field(description="The only node that may register with it; empty: any.")
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None


class CreatedTokenShape(Shape):
    """A new token with its secret, which is not told again."""

    token: TokenShape
    secret: str = Field(description="`pstn_…`: the node or session sends it as a bearer token.")


class RevocationShape(Shape):
    """What became of a node that was revoked."""

    node_id: str
    was_connected: bool
    tokens: list[TokenShape] = Field(description="Those that were for this node alone. They are revoked.")
    shared_token: TokenShape | None = Field(
        description="The token that it was connected with, if others may use it too: it is as good as before."
    )


class JobShape(Shape):
    """A job. It stays for some minutes after its end."""

    model_config = example(
        job_id="5f0c1b9e5f0c1b9e5f0c1b9e5f0c1b9e",
        state="RUNNING",
        outcome="",
        capability="vision",
        model="qwen2-vl",
        attempt=1,
        max_attempts=3,
        node_id="desk-1",
        instance_id="host-4242-1f09ab",
        **_TOKEN,
        created_at="2026-11-22T10:00:00Z",
        deadline_at="2026-11-22T10:02:00Z",
        finished_at=None,
        error_code="",
        error="",
    )
    job_id: str
    state: JobState
    outcome: str = Field(description="`ok`, `error` or `cancelled`; empty until it is done.")
    capability: str
    model: str
    attempt: int = Field(description="From 1. Each is another node's.")
    max_attempts: int
    node_id: str = Field(description="Who has it, or had it last.")
    instance_id: str = Field(description="The instance of the gateway that schedules it.")
    token_id: str = Field(description="The token of the session that asked for it.")
    token: str
    created_at: datetime | None
    deadline_at: datetime | None
    finished_at: datetime | None
    error_code: str
    error: str


class DeadLetterShape(Shape):
    """A message between instances that was delivered again and again, and never handled."""

    model_config = example(
        instance_id="host-4242-1f09ab",
        id="1795341600000-0",
        kind="assign",
        body={"job_id": "5f0c1b9e"},
        deliveries=5,
        moved_at="2026-11-22T10:00:00Z",
    )
    instance_id: str = Field(description="Whom it was for.")
    id: str
    kind: str
    body: dict[str, Any]
    deliveries: int
    moved_at: datetime | None


class InstanceShape(Shape):
    """An instance of the gateway."""

    instance_id: str
    alive: bool
    last_seen_at: datetime | None
    nodes: int
    sessions: int = Field(description="Connected to it.")
    messages: int = Field(description="In its inbox.")


class GatewayShape(Shape):
    """How the gateway stands, all instances together."""

    model_config = example(
        instances=[
            {
                "instance_id": "host-4242-1f09ab",
                "alive": True,
                "last_seen_at": "2026-11-22T10:00:00Z",
                "nodes": 2,
                "sessions": 1,
                "messages": 0,
            }
        ],
        nodes={"connected": 2, "draining": 0, "gone": 1},
        slots=8,
        used=3,
        sessions=1,
        jobs={"CREATED": 0, "DISPATCHED": 0, "ACCEPTED": 0, "RUNNING": 3, "FINISHED": 0, "RELEASED": 41},
        waiting={"vision:qwen2-vl": 5},
        inbox_messages=0,
        dead_letters=0,
        dead_letters_moved=0,
    )
    instances: list[InstanceShape]
    nodes: dict[NodeStatus, int]
    slots: int
    used: int
    sessions: int
    jobs: dict[JobState, int]
    waiting: dict[str, int] = Field(description="By `capability:model`: jobs in line for a slot.")
    inbox_messages: int
    dead_letters: int
    dead_letters_moved: int = Field(description="Since ever.")


class NewToken(Strict):
    """Whom a token is for."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "desk", "kind": "node", "expires_days": 90}]})
    name: CredentialName
    kind: TokenKind = Field(default=TokenKind.NODE, description="`node` offers work, `session` asks for it.")
    node_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{0,64}$")] = Field(
        default="", description="The only node that may register with it; only for the kind `node`."
    )
    expires_days: LifeDays = Field(default=None, description="None: never.")


class Draining(Strict):
    """Why a node is drained."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "the room is being painted"}]})
    reason: Line = Field(default="", description="Told to whoever runs the node.")


@router.get("/nodes", dependencies=reader)
def list_nodes(context: InContext) -> Page[NodeShape]:
    """List the nodes that are connected to any instance, and lately connected ones."""
    return Page(items=[NodeShape.model_validate(found) for found in service.nodes(context)])


@router.get("/nodes/tokens", dependencies=seeing)
def list_tokens(context: InContext) -> Page[TokenShape]:
    """List the tokens of nodes and sessions, without their secrets. Only administrators see them."""
    return Page(items=[TokenShape.model_validate(found) for found in tokens.list_tokens(context)])


@router.post("/nodes/tokens", dependencies=admin, status_code=201)
def create_token(context: InContext, new: NewToken, response: Response) -> CreatedTokenShape:
    """Make a token. The answer is the only one with its secret.

    That answer is not kept, so an Idempotency-Key does not help here: sent again, the request makes another token.
    """
    response.headers["Cache-Control"] = "no-store"
    lasts = timedelta(days=new.expires_days) if new.expires_days else None
    secret, token = tokens.create(context, new.name, new.kind, lasts, new.node_id)
    return CreatedTokenShape(token=TokenShape.model_validate(token), secret=secret)


@router.post("/nodes/tokens/{token_id}/revoke", dependencies=admin, responses=documented(404))
def revoke_token(context: InContext, token_id: HexId) -> TokenShape:
    """End a token, and every connection with it. Harmless if it was revoked before."""
    return TokenShape.model_validate(service.revoke_token(context, token_id))


@router.get("/nodes/{node_id}", dependencies=reader, responses=documented(404))
def show_node(context: InContext, node_id: GivenId) -> NodeShape:
    """Show a node with the jobs that hold its slots."""
    return NodeShape.model_validate(service.node(context, node_id))


@router.post("/nodes/{node_id}/drain", dependencies=admin, status_code=202, responses=documented(404))
def drain_node(context: InContext, node_id: GivenId, how: Draining | None = None) -> NodeShape:
    """Ask a node to finish its jobs and end. It gets no new ones, and loses none."""
    return NodeShape.model_validate(service.drain(context, node_id, how.reason if how else ""))


@router.post("/nodes/{node_id}/revoke", dependencies=admin, responses=documented(404))
def revoke_node(context: InContext, node_id: GivenId) -> RevocationShape:
    """Throw a node out at once, and revoke its tokens if they are for it alone. Its jobs go to other nodes."""
    return RevocationShape.model_validate(service.revoke(context, node_id))


@router.post("/nodes/{node_id}/free", dependencies=admin, status_code=204, responses=documented(404, 409))
def free_node(context: InContext, node_id: GivenId) -> Response:
    """Free the name of a node that is gone: the next token that registers a node by it has it."""
    service.free(context, node_id)
    return Response(status_code=204)


@router.get("/jobs", dependencies=reader)
def list_jobs(
    context: InContext,
    state: Annotated[JobState | None, Query(description="Only those in this state.")] = None,
    limit: Limit = 50,
) -> Page[JobShape]:
    """List jobs of inference nodes, the newest first. Finished jobs expire after some minutes."""
    return Page(items=[JobShape.model_validate(found) for found in service.jobs(context, state, limit)])


@router.get("/jobs/{job_id}", dependencies=reader, responses=documented(404))
def show_job(context: InContext, job_id: GivenId) -> JobShape:
    """Show a job."""
    return JobShape.model_validate(service.job(context, job_id))


@router.post("/jobs/{job_id}/cancel", dependencies=admin, status_code=202, responses=documented(404))
def cancel_job(context: InContext, job_id: GivenId) -> JobShape:
    """Cancel a job: the sessions that wait for it get the error `cancelled`. Harmless if it has ended."""
    return JobShape.model_validate(service.cancel(context, job_id))


@router.get("/dlq", dependencies=seeing)
def list_dead_letters(context: InContext, limit: Limit = 50) -> Page[DeadLetterShape]:
    """List dead letters, the newest first. Only administrators see them: they may hold pieces of answers."""
    return Page(items=[DeadLetterShape.model_validate(found) for found in service.dlq(context, limit)])


@router.post("/dlq/{instance_id}/{letter_id}/replay", dependencies=admin, status_code=204, responses=documented(404))
def replay_dead_letter(context: InContext, instance_id: GivenId, letter_id: LetterId) -> Response:
    """Put a dead letter back into its inbox. If its instance is gone, another one takes it."""
    service.replay(context, instance_id, letter_id)
    return Response(status_code=204)


@router.delete("/dlq/{instance_id}/{letter_id}", dependencies=admin, status_code=204, responses=documented(404))
def drop_dead_letter(context: InContext, instance_id: GivenId, letter_id: LetterId) -> Response:
    """Delete a dead letter."""
    service.drop(context, instance_id, letter_id)
    return Response(status_code=204)


@router.get("/gateway", dependencies=reader)
def show_gateway(context: InContext) -> GatewayShape:
    """Show how the gateway stands: its instances, nodes, jobs by state, what waits."""
    return GatewayShape.model_validate(service.status(context))
