"""The console as a part of the application: its routers, its files, its errors."""

from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse
from starlette.datastructures import Headers
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.interfaces.console import live, session
from pipeline.interfaces.console.addresses import ROOT, STATIC, is_console, placed
from pipeline.interfaces.console.answers import problem
from pipeline.interfaces.console.screens import ROUTERS
from pipeline.interfaces.http.errors import response_for

_YEAR = "public, max-age=31536000, immutable"


class _Files(StaticFiles):
    """Our own files. Those whose address names their version are kept by browsers."""

    def file_response(self, *given: Any, **named: Any) -> Response:
        answer = super().file_response(*given, **named)
        scope: Scope = given[2] if len(given) > 2 else named["scope"]
        answer.headers["Cache-Control"] = _YEAR if scope["query_string"].startswith(b"v=") else "no-cache"
        return answer


class Compressed:
    """Compresses pages and files of the console, and nothing else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._compressing = app, GZipMiddleware(app, minimum_size=800, compresslevel=5)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        chosen = self._compressing if scope["type"] == "http" and is_console(HTTPConnection(scope)) else self._app
        await chosen(scope, receive, send)


def attach(tree: APIRouter) -> None:
    """Put the console among these routes."""
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


def answer_for(error: Exception, request: Request) -> Response:
    """The answer to any exception: a page for the console, a problem for all others."""
    answer = response_for(error, request.method, request.scope["path"])
    wants_json = "json" in Headers(scope=request.scope).get("accept", "")
    return problem(answer, request) if is_console(request) and not wants_json else answer
