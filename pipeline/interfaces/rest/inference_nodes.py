"""`/api/v1/nodes`, `/jobs`, `/dlq` and `/gateway`: inference nodes, and the gateway's jobs.

The nodes of screenshots, nodes of the graph, are different things.
"""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import ConfigDict, Field, StringConstraints

from pipeline.interfaces.http.dependencies import ByCaller, admin, reader, seeing
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import CredentialName, DeadLetterId, GivenId, HexId, LifeDays, Limit, Line, Strict
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.pages import Page
from pipeline.nodes.job import JobState
from pipeline.nodes.service import Revocation
from pipeline.nodes.tokens import TokenKind, TokenView
from pipeline.nodes.views import DeadLetterView, GatewayView, JobView, NodeView
from pipeline.operations import nodes as inference
from pipeline.operations.nodes import CreatedToken

router = APIRouter(tags=["nodes"], route_class=JsonRoute)


class NewToken(Strict):
    """The form of a token."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "desk", "kind": "node", "expires_days": 90}]})
    name: CredentialName
    kind: TokenKind = Field(default=TokenKind.NODE, description="`node` does jobs, `session` requests them.")
    node_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{0,64}$")] = Field(
        default="", description="The only node that may register with it; only for the kind `node`."
    )
    expires_days: LifeDays = Field(default=None, description="None: it never expires.")


class Draining(Strict):
    """The reason of a drain."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "the room is being painted"}]})
    reason: Line = Field(default="", description="Shown to the node's operator.")


@router.get("/nodes", dependencies=reader)
def list_nodes(caller: ByCaller) -> Page[NodeView]:
    """List the nodes that are or recently were connected to any instance."""
    return Page(items=inference.nodes.by(caller))


@router.get("/nodes/tokens", dependencies=seeing)
def list_tokens(caller: ByCaller) -> Page[TokenView]:
    """List the tokens of nodes and sessions, without their secrets. Only administrators see them."""
    return Page(items=inference.list_tokens.by(caller))


@router.post("/nodes/tokens", dependencies=admin, status_code=201, responses=documented(409))
def create_token(caller: ByCaller, new: NewToken, response: Response) -> CreatedToken:
    """Create a token. Only this answer holds its secret.

    Penstock does not store the answer, so an Idempotency-Key has no effect: a repeated request creates another token.
    """
    response.headers["Cache-Control"] = "no-store"
    return inference.create_token.by(caller, **dict(new))


@router.post("/nodes/tokens/{token_id}/revoke", dependencies=admin, responses=documented(404))
def revoke_token(caller: ByCaller, token_id: HexId) -> TokenView:
    """Revoke a token, and end its connections. Harmless if it is already revoked."""
    return inference.revoke_token.by(caller, token_id)


@router.get("/nodes/{node_id}", dependencies=reader, responses=documented(404))
def show_node(caller: ByCaller, node_id: GivenId) -> NodeView:
    """Show a node with the jobs that hold its slots."""
    return inference.node.by(caller, node_id)


@router.post("/nodes/{node_id}/drain", dependencies=admin, status_code=202, responses=documented(404))
def drain_node(caller: ByCaller, node_id: GivenId, how: Draining | None = None) -> NodeView:
    """Ask a node to finish its jobs and end. It gets no new jobs, and loses none."""
    return inference.drain.by(caller, node_id, how.reason if how else "")


@router.post("/nodes/{node_id}/revoke", dependencies=admin, responses=documented(404))
def revoke_node(caller: ByCaller, node_id: GivenId) -> Revocation:
    """Disconnect a node at once, and revoke the tokens that only it uses. Other nodes take its jobs."""
    return inference.revoke.by(caller, node_id)


@router.post("/nodes/{node_id}/free", dependencies=admin, status_code=204, responses=documented(404, 409))
def free_node(caller: ByCaller, node_id: GivenId) -> Response:
    """Free the name of a dead node: the next token that registers this name owns it."""
    inference.free.by(caller, node_id)
    return Response(status_code=204)


@router.get("/jobs", dependencies=reader)
def list_jobs(
    caller: ByCaller,
    state: Annotated[JobState | None, Query(description="Only jobs in this state.")] = None,
    limit: Limit = 50,
) -> Page[JobView]:
    """List jobs of inference nodes, newest first. Finished jobs expire after some minutes."""
    return Page(items=inference.jobs.by(caller, state, limit))


@router.get("/jobs/{job_id}", dependencies=reader, responses=documented(404))
def show_job(caller: ByCaller, job_id: GivenId) -> JobView:
    """Show a job."""
    return inference.job.by(caller, job_id)


@router.post("/jobs/{job_id}/cancel", dependencies=admin, status_code=202, responses=documented(404))
def cancel_job(caller: ByCaller, job_id: GivenId) -> JobView:
    """Cancel a job: the sessions that wait for it get the error `cancelled`. Harmless after its end."""
    return inference.cancel_job.by(caller, job_id)


@router.get("/dlq", dependencies=seeing)
def list_dead_letters(caller: ByCaller, limit: Limit = 50) -> Page[DeadLetterView]:
    """List dead letters, newest first. Only administrators see them: they may hold pieces of answers."""
    return Page(items=inference.dlq.by(caller, limit))


@router.post("/dlq/{instance_id}/{letter_id}/replay", dependencies=admin, status_code=204, responses=documented(404))
def replay_dead_letter(caller: ByCaller, instance_id: GivenId, letter_id: DeadLetterId) -> Response:
    """Put a dead letter back into its inbox. If its instance is dead, another instance takes it."""
    inference.replay.by(caller, instance_id, letter_id)
    return Response(status_code=204)


@router.delete("/dlq/{instance_id}/{letter_id}", dependencies=admin, status_code=204, responses=documented(404))
def drop_dead_letter(caller: ByCaller, instance_id: GivenId, letter_id: DeadLetterId) -> Response:
    """Delete a dead letter."""
    inference.drop.by(caller, instance_id, letter_id)
    return Response(status_code=204)


@router.get("/gateway", dependencies=reader)
def show_gateway(caller: ByCaller) -> GatewayView:
    """Show the state of the gateway: its instances, nodes, jobs by state, and waiting jobs."""
    return inference.status.by(caller)
