"""What endpoints ask for: the context, the caller, and the right to do what they do.

Every router of `/api/v1` names `reader`, `writer` or `admin`; a test finds endpoints that name none.
"""

from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPBearer

from pipeline.interfaces.api.caller import Caller, Quotas, allow
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context

# For the OpenAPI document alone: `CallerMiddleware` has looked at the key already.
_SCHEMES = [
    Security(HTTPBearer(auto_error=False, description="A key from `penstock keys create`.")),
    Security(
        APIKeyHeader(name="X-Api-Key", auto_error=False, description="The same key, where a client wants it here.")
    ),
]


def context(request: Request) -> Context:
    """The context of this process."""
    found: Context = request.app.state.context
    return found


def caller(request: Request) -> Caller:
    """Who calls."""
    found: Caller = request.state.caller
    return found


def quotas(request: Request) -> Quotas:
    """What callers may have in a time."""
    found: Quotas = request.app.state.quotas
    return found


def _require(needed: Scope, request: Request) -> None:
    allow(request.state.caller, needed, read_only=request.app.state.context.settings.api.read_only)


async def _reader(request: Request) -> None:
    _require(Scope.READ, request)


async def _writer(request: Request) -> None:
    _require(Scope.WRITE, request)


async def _admin(request: Request) -> None:
    _require(Scope.ADMIN, request)


InContext = Annotated[Context, Depends(context)]
ByCaller = Annotated[Caller, Depends(caller)]
WithQuotas = Annotated[Quotas, Depends(quotas)]
reader = [Depends(_reader), *_SCHEMES]
"""`APIRouter(dependencies=reader)`, or of one endpoint: whoever may read. Also for a POST that only reads."""
writer = [Depends(_writer), *_SCHEMES]
"""Whoever may change things; nobody in read-only mode."""
admin = [Depends(_admin), *_SCHEMES]
"""Whoever may change how everything runs: queues, breakers, settings, keys."""


def here(request: Request, path: str) -> str:
    """A path of this API as clients reach it, for `Location`: with the prefix."""
    return f"{request.app.state.context.settings.api.prefix}{path}"
