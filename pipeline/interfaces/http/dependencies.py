"""What endpoints ask for: the context, the caller, and the right to do what they do.

Every router of `/api/v1` names `reader`, `writer` or `admin`; a test finds endpoints that name none.
"""

from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPBearer

from pipeline.interfaces.http.guard import asked_here
from pipeline.operations.caller import Caller
from pipeline.operations.quotas import Quotas
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context

PATIENCE_S = 3.0
"""How long a caller waits for a database that is away, before they are answered with 503."""

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
    """Raise `Refused` if another site led the caller here (403), or the caller has spent enough today (429). Blocks.

    Who always spends names `spender`.
    """
    asked_here(request)
    request.state.caller.check_spending()


InContext = Annotated[Context, Depends(context)]
ByCaller = Annotated[Caller, Depends(caller)]
WithQuotas = Annotated[Quotas, Depends(quotas)]
reader = [Depends(_reader), *_SCHEMES]
"""`APIRouter(dependencies=reader)`, or of one endpoint: whoever may read. Also for a POST that only reads."""
writer = [Depends(_writer), *_SCHEMES]
"""Whoever may change things; nobody in read-only mode."""
admin = [Depends(_admin), *_SCHEMES]
"""Whoever may change how everything runs: queues, breakers, settings, keys."""
seeing = [Depends(_seer), *_SCHEMES]
"""Requires the scope `admin`, also in read-only mode: for endpoints that only show data to administrators."""

spender = [Depends(may_spend)]
"""Beside one of the others: whoever has not spent their money for today. For all that may lead to calls of AI services;
what takes the work in reserves money for it."""


from_here = [Depends(asked_here)]
"""Beside one of the others: requests that no other site led to. For a GET whose operation checks what was spent."""


def here(request: Request, path: str) -> str:
    """A path of this API as clients reach it, for `Location`: with the prefix."""
    return f"{request.app.state.context.settings.api.prefix}{path}"
