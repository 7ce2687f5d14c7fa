"""`/api/v1/nodes`, `/jobs`, `/dlq` and `/gateway`: inference nodes, and what goes through the gateway.

Not to be taken for the nodes of screenshots, which are pieces of context.
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
def list_nodes(caller: ByCaller) -> Page[NodeView]:
    """List the nodes that are connected to any instance, and lately connected ones."""
    return Page(items=inference.nodes.by(caller))


@router.get("/nodes/tokens", dependencies=seeing)
def list_tokens(caller: ByCaller) -> Page[TokenView]:
    """List the tokens of nodes and sessions, without their secrets. Only administrators see them."""
    return Page(items=inference.list_tokens.by(caller))


@router.post("/nodes/tokens", dependencies=admin, status_code=201)
def create_token(caller: ByCaller, new: NewToken, response: Response) -> CreatedToken:
    """Make a token. The answer is the only one with its secret.

    That answer is not kept, so an Idempotency-Key does not help here: sent again, the request makes another token.
    """
    response.headers["Cache-Control"] = "no-store"
    return inference.create_token.by(caller, **dict(new))


@router.post("/nodes/tokens/{token_id}/revoke", dependencies=admin, responses=documented(404))
def revoke_token(caller: ByCaller, token_id: HexId) -> TokenView:
    """End a token, and every connection with it. Harmless if it was revoked before."""
    return inference.revoke_token.by(caller, token_id)


@router.get("/nodes/{node_id}", dependencies=reader, responses=documented(404))
def show_node(caller: ByCaller, node_id: GivenId) -> NodeView:
    """Show a node with the jobs that hold its slots."""
    return inference.node.by(caller, node_id)


@router.post("/nodes/{node_id}/drain", dependencies=admin, status_code=202, responses=documented(404))
def drain_node(caller: ByCaller, node_id: GivenId, how: Draining | None = None) -> NodeView:
    """Ask a node to finish its jobs and end. It gets no new ones, and loses none."""
    return inference.drain.by(caller, node_id, how.reason if how else "")


@router.post("/nodes/{node_id}/revoke", dependencies=admin, responses=documented(404))
def revoke_node(caller: ByCaller, node_id: GivenId) -> Revocation:
    """Throw a node out at once, and revoke its tokens if they are for it alone. Its jobs go to other nodes."""
    return inference.revoke.by(caller, node_id)


@router.post("/nodes/{node_id}/free", dependencies=admin, status_code=204, responses=documented(404, 409))
def free_node(caller: ByCaller, node_id: GivenId) -> Response:
    """Free the name of a node that is gone: the next token that registers a node by it has it."""
    inference.free.by(caller, node_id)
    return Response(status_code=204)


@router.get("/jobs", dependencies=reader)
def list_jobs(
    caller: ByCaller,
    state: Annotated[JobState | None, Query(description="Only those in this state.")] = None,
    limit: Limit = 50,
) -> Page[JobView]:
    """List jobs of inference nodes, the newest first. Finished jobs expire after some minutes."""
    return Page(items=inference.jobs.by(caller, state, limit))


@router.get("/jobs/{job_id}", dependencies=reader, responses=documented(404))
def show_job(caller: ByCaller, job_id: GivenId) -> JobView:
    """Show a job."""
    return inference.job.by(caller, job_id)


@router.post("/jobs/{job_id}/cancel", dependencies=admin, status_code=202, responses=documented(404))
def cancel_job(caller: ByCaller, job_id: GivenId) -> JobView:
    """Cancel a job: the sessions that wait for it get the error `cancelled`. Harmless if it has ended."""
    return inference.cancel_job.by(caller, job_id)


@router.get("/dlq", dependencies=seeing)
def list_dead_letters(caller: ByCaller, limit: Limit = 50) -> Page[DeadLetterView]:
    """List dead letters, the newest first. Only administrators see them: they may hold pieces of answers."""
    return Page(items=inference.dlq.by(caller, limit))


@router.post("/dlq/{instance_id}/{letter_id}/replay", dependencies=admin, status_code=204, responses=documented(404))
def replay_dead_letter(caller: ByCaller, instance_id: GivenId, letter_id: DeadLetterId) -> Response:
    """Put a dead letter back into its inbox. If its instance is gone, another one takes it."""
    inference.replay.by(caller, instance_id, letter_id)
    return Response(status_code=204)


@router.delete("/dlq/{instance_id}/{letter_id}", dependencies=admin, status_code=204, responses=documented(404))
def drop_dead_letter(caller: ByCaller, instance_id: GivenId, letter_id: DeadLetterId) -> Response:
    """Delete a dead letter."""
    inference.drop.by(caller, instance_id, letter_id)
    return Response(status_code=204)


@router.get("/gateway", dependencies=reader)
def show_gateway(caller: ByCaller) -> GatewayView:
    """Show how the gateway stands: its instances, nodes, jobs by state, what waits."""
    return inference.status.by(caller)
