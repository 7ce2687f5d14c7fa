"""The application of the APIs: routers, and the middleware around them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version
from threading import Event
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from fastapi.telemetry import TelemetryConfig
from starlette.datastructures import State
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route

from pipeline.engine import telemetry
from pipeline.flows import flows
from pipeline.interfaces import compatibility as compat
from pipeline.interfaces import rest as v1
from pipeline.interfaces.console import app as console
from pipeline.interfaces.http.bodies import BodyLimits
from pipeline.interfaces.http.dependencies import PATIENCE_S
from pipeline.interfaces.http.errors import Problem, documented, handlers, problem
from pipeline.interfaces.http.guard import Guard
from pipeline.interfaces.http.idempotency import Idempotency
from pipeline.interfaces.http.identity import CallerMiddleware
from pipeline.interfaces.http.json_bodies import Turns
from pipeline.interfaces.http.pictures import Pictures
from pipeline.interfaces.http.query import known_query
from pipeline.interfaces.mcp.http import PATH as MCP_PATH
from pipeline.interfaces.mcp.http import Mcp
from pipeline.interfaces.mcp.uploads import PATH as UPLOADS_PATH
from pipeline.interfaces.mcp.uploads import receive_upload
from pipeline.interfaces.metrics.exposition import Exposition
from pipeline.interfaces.rest import health, metrics
from pipeline.operations.quotas import Quotas
from pipeline.process import get_context
from pipeline.standalone.address import is_loopback
from pipeline.storage.context import Context

PREFIX = "/api/v1"
_EVERYWHERE = (400, 401, 403, 408, 413, 421, 422, 429, 500, 503)
_ABOUT = """Documents become Markdown, screenshots and music become searchable, knowledge bases answer.

Errors are problem details (RFC 9457) with a `code`. Lists have cursors. Long work answers with 202, and `?wait=` waits
for it. The server acts once on a POST with an `Idempotency-Key`, however often a client sends it."""


def create_app(context: Context | None = None, host: str | None = None) -> FastAPI:
    """Return the application of the APIs, the console and MCP on this context (default: the process's own).

    `host`: the address on which the server listens (default: that of the settings); beyond loopback, requests need
    keys.
    """
    context = context or get_context()
    settings = context.settings.api
    quotas = Quotas(context)
    ending = Event()
    """Set when the server begins to shut down: long polls and streams end then."""
    keys_required = settings.require_key or not is_loopback(host or settings.host)
    counted, traces = Exposition(context), telemetry.begin("api")
    traced: TelemetryConfig = {
        "logs": False,
        "metrics": False,
        "tracing": traces is not None,
        "tracer_provider": traces,
    }
    state = State()
    state.context, state.quotas, state.metrics, state.ending = context, quotas, counted, ending
    state.pictures, state.turns, state.mcp = Pictures(ending), Turns(), Mcp(settings)
    inner = [  # outermost first
        Middleware(BodyLimits, settings=settings),
        Middleware(CallerMiddleware, context=context, quotas=quotas, ending=ending, keys_required=keys_required),
    ]
    state.console = console.create_app(settings, state, inner, telemetry=traced)
    app = FastAPI(
        title="Penstock",
        version=version("penstock"),
        description=_ABOUT,
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,  # both load scripts from elsewhere
        openapi_external_docs={"url": settings.docs_url} if settings.docs_url else None,
        generate_unique_id_function=_operation_id,
        redirect_slashes=False,
        telemetry=traced,
        exception_handlers=handlers(problem),
        middleware=[
            Middleware(counted.requests.middleware),
            Middleware(console.Beside, console=state.console),
            Middleware(Guard, settings=settings, answer=problem),
            *inner,
            Middleware(Idempotency, context=context),
        ],
    )
    app.state = state
    app.router.routes += [
        *_routes(),
        Route(MCP_PATH, state.mcp, methods=["POST"]),
        Route(UPLOADS_PATH, receive_upload, methods=["PUT"]),
    ]
    _describe_problems(app)
    state.openapi = app.openapi
    return app


@cache
def _routes() -> list[BaseRoute]:
    """The routes that all applications of a process share. They take their context from the application's state.

    Cached, because FastAPI builds the models of a route again for every application that includes it.
    """
    flows()  # loads flows, so that their listeners follow changes made here
    apis = APIRouter(dependencies=known_query, generate_unique_id_function=_operation_id)
    apis.include_router(health.router, responses=documented(421, 422, 429, 500))
    apis.include_router(metrics.router, responses=documented(401, 403, 421, 422, 429, 500))
    for router in v1.ROUTERS:
        apis.include_router(router, prefix=PREFIX, responses=documented(*_EVERYWHERE))
    for router in v1.AT_ROOT:
        apis.include_router(router, include_in_schema=False)
    for router in compat.ROUTERS:
        apis.include_router(router, responses=documented(*_EVERYWHERE, 404, 409, 415, 504, 507))
    return [*apis.routes, *compat.SOCKETS]


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    context: Context = app.state.context
    anyio.to_thread.current_default_thread_limiter().total_tokens = context.settings.api.threads
    before, context.db.patience_s = context.db.patience_s, PATIENCE_S
    try:
        async with app.state.mcp.running():
            yield
    finally:
        app.state.ending.set()
        await anyio.to_thread.run_sync(app.state.metrics.close)
        context.db.patience_s = before
        app.state.quotas.close()


def _operation_id(route: APIRoute) -> str:
    return f"{route.tags[0]}_{route.name}" if route.tags else route.name


def _describe_problems(app: FastAPI) -> None:
    """Add the schema `Problem`, to which answers refer, to the OpenAPI document."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        if "Problem" not in schemas:
            problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= problem.pop("$defs", {}) | {"Problem": problem}
        return document

    app.openapi = openapi  # type: ignore[method-assign]
