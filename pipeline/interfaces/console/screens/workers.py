"""Workers and inference nodes: their work, and an operator's actions on nodes, jobs and dead letters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Form, Path, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, StringConstraints
from redis import RedisError
from starlette.responses import Response

from pipeline.engine.errors import UserError
from pipeline.interfaces.console import live
from pipeline.interfaces.console.addresses import url
from pipeline.interfaces.console.answers import done
from pipeline.interfaces.console.fields import BLANK
from pipeline.interfaces.console.page import piece, screen
from pipeline.interfaces.http.dependencies import ByCaller, InContext, admin, reader
from pipeline.interfaces.http.fields import DeadLetterId, GivenId, LifeDays, Line
from pipeline.interfaces.http.places import place_of_call
from pipeline.nodes import service
from pipeline.nodes.job import DONE, JobState
from pipeline.nodes.tokens import TokenKind, TokenView
from pipeline.nodes.views import DeadLetterView, GatewayView, JobView, NodeStatus, NodeView
from pipeline.operations import nodes as inference
from pipeline.operations import overview
from pipeline.operations.caller import Caller
from pipeline.operations.events import Filter
from pipeline.operations.overview import Fleet
from pipeline.operations.workers import Job
from pipeline.storage.context import Context

router = APIRouter(prefix="/console/workers", include_in_schema=False, dependencies=reader)
JOBS, LETTERS, PATIENCE_S = 25, 50, 3.0
NODE_CSS = {NodeStatus.CONNECTED: "done", NodeStatus.DRAINING: "waiting", NodeStatus.GONE: "paused"}
_NONE = Filter(types=("none",))
"""Render workers every few seconds: time changes them, without an event."""
TokenId = Annotated[str, Path(pattern=r"^[0-9a-f]{1,32}$")]


class WorkersQuery(live.ViewQuery):
    """No fields: all workers."""


class NodesQuery(live.ViewQuery):
    """No fields: all nodes."""


@dataclass(frozen=True)
class Gateway:
    """The gateway's view of its nodes and jobs; `problem`: the reason for an unknown state."""

    status: GatewayView | None = None
    nodes: tuple[NodeView, ...] = ()
    jobs: tuple[JobView, ...] = ()
    problem: str = ""


def scope_page(job: Job) -> str:
    """Return the address of the document, run, batch or item of a worker's job; empty without one."""
    if job.flow == "screenshots" and not job.scope.isdecimal():  # the job of a thread, or of all vectors
        return ""
    address = place_of_call(job.flow, job.scope, "")
    return url(address) if address else ""


def job_css(job: JobView) -> str:
    """Return the CSS class of a job's state."""
    if job.state not in DONE:
        return "working" if job.state is JobState.RUNNING else "waiting"
    return {"ok": "done", "error": "failed"}.get(job.outcome, "paused")


def _workers(fleet: Fleet | None) -> dict[str, str]:
    return {"workers": piece("workers/_workers.html", fleet=fleet, page_of=scope_page)}


@live.view("workers", matches=lambda _: _NONE, every_s=3)
def all_workers(context: Context, query: WorkersQuery) -> dict[str, str]:  # noqa: ARG001
    """Return HTML by element id: the workers."""
    return _workers(overview.fleet(context))


def _gateway(context: Context) -> Gateway:
    try:
        return Gateway(
            service.status(context, PATIENCE_S), tuple(service.nodes(context)), tuple(service.jobs(context, None, JOBS))
        )
    except (RedisError, UserError) as error:
        return Gateway(problem=str(error) or "The gateway's Redis does not answer.")


def _nodes(view: Gateway) -> dict[str, str]:
    return {"nodes": piece("workers/_nodes.html", view=view, node_css=NODE_CSS, job_css=job_css)}


@live.view("nodes", matches=lambda _: _NONE, every_s=3)
def all_nodes(context: Context, query: NodesQuery) -> dict[str, str]:  # noqa: ARG001
    """Return HTML by element id: the gateway, its nodes and the newest jobs."""
    return _nodes(_gateway(context))


@router.get("")
def show(request: Request, context: InContext, caller: ByCaller) -> HTMLResponse:
    """Show workers and, once a token exists, inference nodes, jobs and dead letters."""
    used, knows = service.is_used(context), caller.is_admin
    shown = _workers(overview.fleet(context)) | (_nodes(_gateway(context)) if used else {})
    return screen(
        request,
        "workers/index.html",
        shown=shown,
        is_used=used,
        knows=knows,
        letters=_if_there(lambda: inference.dlq.by(caller, LETTERS)) if used and knows else [],
        tokens=_tokens(caller) if knows else [],
        secret="",
    )


def _if_there(read: Callable[[], list[DeadLetterView]]) -> list[DeadLetterView]:
    try:
        return read()
    except (RedisError, UserError):
        return []  # the nodes' part shows the problem


def _tokens(caller: Caller) -> list[tuple[TokenView, bool]]:
    now = caller.context.db.now()
    return [(token, token.usable(now)) for token in inference.list_tokens.by(caller)]


@router.get("/nodes/{node_id}")
def show_node(request: Request, caller: ByCaller, node_id: GivenId) -> HTMLResponse:
    """Show a node and the jobs that hold its slots."""
    return screen(request, "workers/node.html", node=inference.node.by(caller, node_id), node_css=NODE_CSS)


@router.get("/jobs/{job_id}")
def show_job(request: Request, caller: ByCaller, job_id: GivenId) -> HTMLResponse:
    """Show a job of an inference node."""
    job = inference.job.by(caller, job_id)
    return screen(request, "workers/job.html", job=job, job_css=job_css, is_open=job.state not in DONE)


class Draining(BaseModel):
    """The reason of a drain."""

    reason: Line = ""


class NewToken(BaseModel):
    """The form of a token."""

    name: Annotated[Line, StringConstraints(min_length=1, max_length=100)]
    kind: TokenKind = TokenKind.NODE
    days: Annotated[LifeDays, BLANK] = None


@router.post("/nodes/{node_id}/drain", dependencies=admin)
def drain(request: Request, caller: ByCaller, node_id: GivenId, how: Annotated[Draining, Form()]) -> Response:
    """Ask a node to finish its jobs and end."""
    inference.drain.by(caller, node_id, how.reason)
    return done(request, f"{node_id} finishes its jobs, takes no more, and ends.")


@router.post("/nodes/{node_id}/revoke", dependencies=admin)
def revoke(request: Request, caller: ByCaller, node_id: GivenId) -> Response:
    """Close a node's connection, and revoke the tokens that only it uses."""
    revoked = inference.revoke.by(caller, node_id)
    shared = revoked.shared_token
    message = (
        f" The token “{shared.name}” also serves other nodes: revoke it too if the node must not return."
        if shared
        else ""
    )
    return done(request, f"{node_id} is disconnected; other nodes take its jobs.{message}", to="/console/workers")


@router.post("/jobs/{job_id}/cancel", dependencies=admin)
def cancel(request: Request, caller: ByCaller, job_id: GivenId) -> Response:
    """Cancel a job, even if sessions wait for it."""
    inference.cancel_job.by(caller, job_id)
    return done(request, "The job is ending: the sessions that wait for it get the error “cancelled”.")


@router.post("/dlq/{instance_id}/{letter_id}/replay", dependencies=admin)
def replay(request: Request, caller: ByCaller, instance_id: GivenId, letter_id: DeadLetterId) -> Response:
    """Deliver a dead letter again."""
    inference.replay.by(caller, instance_id, letter_id)
    return done(request, "The message is delivered again.")


@router.post("/dlq/{instance_id}/{letter_id}/delete", dependencies=admin)
def drop(request: Request, caller: ByCaller, instance_id: GivenId, letter_id: DeadLetterId) -> Response:
    """Delete a dead letter."""
    inference.drop.by(caller, instance_id, letter_id)
    return done(request, "The message is deleted.")


@router.post("/tokens", dependencies=admin)
def create_token(request: Request, caller: ByCaller, new: Annotated[NewToken, Form()]) -> HTMLResponse:
    """Create a token. Only the answer holds its secret."""
    created = inference.create_token.by(caller, new.name, new.kind, expires_days=new.days)
    return screen(request, "workers/token.html", token=created.token, secret=created.secret)


@router.post("/tokens/{token_id}/revoke", dependencies=admin)
def revoke_token(request: Request, caller: ByCaller, token_id: TokenId) -> Response:
    """Revoke a token, and end its connections."""
    ended = inference.revoke_token.by(caller, token_id)
    return done(request, f"The token “{ended.name}” is revoked: its connections end.")
