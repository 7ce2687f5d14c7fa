"""The console as an application beside the APIs, with its own routers, files and errors."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import RedirectResponse
from starlette.datastructures import Headers, State
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.interfaces.console import live, session
from pipeline.interfaces.console.addresses import ROOT, STATIC, is_console, placed
from pipeline.interfaces.console.answers import problem as page
from pipeline.interfaces.console.screens import ROUTERS
from pipeline.interfaces.http.errors import handlers, problem
from pipeline.interfaces.http.guard import Guard
from pipeline.settings import ApiSettings

_YEAR = "public, max-age=31536000, immutable"


class _Files(StaticFiles):
    """The console's static files. Browsers cache the files whose address holds their version."""

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        answer = super().file_response(*arguments, **named)
        scope: Scope = arguments[2] if len(arguments) > 2 else named["scope"]
        answer.headers["Cache-Control"] = _YEAR if scope["query_string"].startswith(b"v=") else "no-cache"
        return answer


def create_app(settings: ApiSettings, state: State, inner: Sequence[Middleware], **options: Any) -> FastAPI:
    """Build the console. It shares the API's state and `inner` middleware: identification and limits."""
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=handlers(answer_for),
        middleware=[
            Middleware(Guard, settings=settings, answer=answer_for),
            Middleware(GZipMiddleware, minimum_size=800, compresslevel=5),
            *inner,
        ],
        **options,
    )
    app.state = state
    app.router.routes += _routes()
    return app


@cache
def _routes() -> list[BaseRoute]:
    """Return the console's routes.

    Cached, because FastAPI rebuilds a router's models at the first request of every application that includes it.
    """
    tree = APIRouter()
    tree.mount(f"{ROOT}/static", _Files(directory=STATIC), name="static")
    seen = [Depends(placed)]
    tree.include_router(session.router, prefix=ROOT, dependencies=seen)
    tree.include_router(live.router, prefix=ROOT, dependencies=seen)
    for router in ROUTERS:
        tree.include_router(router, dependencies=seen)

    @tree.get("/", include_in_schema=False)
    @tree.get(ROOT, include_in_schema=False)
    def begin(request: Request) -> Response:
        prefix: str = request.app.state.context.settings.api.prefix
        return RedirectResponse(f"{prefix}{ROOT}/", 307)

    return tree.routes


class Beside:
    """Routes console requests to the console application, and all others to the API."""

    def __init__(self, app: ASGIApp, console: FastAPI) -> None:
        self._app, self._console = app, console
        self._prefix: str = console.state.context.settings.api.prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        inside = scope["type"] == "http" and is_console(scope["path"].removeprefix(self._prefix))
        await (self._console if inside else self._app)(scope, receive, send)


def answer_for(error: Exception, request: Request) -> Response:
    """Return the answer to any exception: a page, or a problem as JSON if the client accepts JSON."""
    answer = problem(error, request)
    wants_json = "json" in Headers(scope=request.scope).get("accept", "")
    return answer if wants_json else page(answer, request)
