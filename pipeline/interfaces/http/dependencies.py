"""Dependencies of endpoints: the context, the caller, and the caller's rights.

Every router of `/api/v1` names `reader`, `writer` or `admin`; a test finds endpoints that name none.
"""

from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPBearer

from pipeline.interfaces.http.guard import check_same_site
from pipeline.operations.caller import Caller
from pipeline.operations.quotas import Quotas
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context

PATIENCE_S = 3.0
"""Seconds for which a request waits for an unreachable database, before it gets 503."""

# For the OpenAPI document alone: `CallerMiddleware` has checked the key already.
_SCHEMES = [
    Security(HTTPBearer(auto_error=False, description="A key from `penstock keys create`.")),
    Security(
        APIKeyHeader(name="X-Api-Key", auto_error=False, description="The same key, for clients that send this header.")
    ),
]


def context(request: Request) -> Context:
    """The context of this process."""
    of_process: Context = request.app.state.context
    return of_process


def caller(request: Request) -> Caller:
    """The caller of this request."""
    of_request: Caller = request.state.caller
    return of_request


def quotas(request: Request) -> Quotas:
    """The quotas of all callers."""
    of_process: Quotas = request.app.state.quotas
    return of_process


def _require(needed: Scope, request: Request) -> None:
    request.state.caller.check(needed)


async def _reader(request: Request) -> None:
    _require(Scope.READ, request)


async def _writer(request: Request) -> None:
    _require(Scope.WRITE, request)


async def _admin(request: Request) -> None:
    _require(Scope.ADMIN, request)


async def _seer(request: Request) -> None:
    request.state.caller.check_scope(Scope.ADMIN)


def may_spend(request: Request) -> None:
    """Raise `Refused` if another site led the caller here (403), or the caller has reached today's spend cap (429).

    Blocks. Endpoints that always spend name `spender`.
    """
    check_same_site(request)
    request.state.caller.check_spending()


InContext = Annotated[Context, Depends(context)]
ByCaller = Annotated[Caller, Depends(caller)]
WithQuotas = Annotated[Quotas, Depends(quotas)]
reader = [Depends(_reader), *_SCHEMES]
"""Requires the scope `read`: `APIRouter(dependencies=reader)`, or of one endpoint. Also for a POST that only reads."""
writer = [Depends(_writer), *_SCHEMES]
"""Requires the scope `write`; refuses in read-only mode."""
admin = [Depends(_admin), *_SCHEMES]
"""Requires the scope `admin`, for changes of queues, breakers, settings and keys; refuses in read-only mode."""
seeing = [Depends(_seer), *_SCHEMES]
"""Requires the scope `admin`, also in read-only mode: for endpoints that only show data to administrators."""

spender = [Depends(may_spend)]
"""Beside one of the others: refuses callers who have reached today's spend cap. For endpoints that may lead to calls of
AI services; the operation reserves the money."""


same_site = [Depends(check_same_site)]
"""Beside one of the others: refuses requests that another site caused. For a GET whose operation checks spending."""


def here(request: Request, path: str) -> str:
    """Return a path of this API with the proxy's prefix, for `Location`."""
    return f"{request.app.state.context.settings.api.prefix}{path}"
