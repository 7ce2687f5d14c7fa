"""Who calls: found out before anything of the request is read, and how much they may ask for.

With a key: whoever holds it. Without one, where none is needed: whoever is on this machine, who may do everything, as
on the command line.
"""

from dataclasses import dataclass

from anyio.to_thread import run_sync
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.engine.rates import Rate
from pipeline.interfaces.api.problems import Refused
from pipeline.interfaces.api.quotas import Quotas
from pipeline.interfaces.http_guard import SAFE
from pipeline.storage import api_keys
from pipeline.storage.api_keys import Scope as KeyScope
from pipeline.storage.api_spend import CALLER
from pipeline.storage.context import Context

_WRONG_KEYS = Rate(30, 60)
_MAX_SECRET = 200
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="penstock"'}


@dataclass(frozen=True)
class Caller:
    """Who calls. `id` names the key or the address; `scope` is None without a key where one is needed."""

    id: str
    name: str
    scope: KeyScope | None
    has_key: bool = False


class CallerMiddleware:
    """Puts the `Caller` into the request's state. Raises `Refused`: 401 for a wrong key, 429 for too many requests."""

    def __init__(self, app: ASGIApp, context: Context, quotas: Quotas, *, keys_required: bool) -> None:
        self._app = app
        self._context = context
        self._quotas = quotas
        self._keys_required = keys_required

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            address = scope["client"][0] if scope.get("client") else "local"
            secret = presented(Headers(scope=scope))
            caller = await run_sync(self._caller, secret, address)
            if caller.scope is None and scope["method"] not in SAFE:
                raise keyless()  # before any of its body is read
            scope.setdefault("state", {})["caller"] = caller
            CALLER.set(caller.id)
        await self._app(scope, receive, send)

    def _caller(self, secret: str, address: str) -> Caller:
        if not secret:
            caller = Caller(f"address:{address}", address, None if self._keys_required else KeyScope.ADMIN)
        else:
            key = api_keys.authenticate(self._context, secret) if len(secret) <= _MAX_SECRET else None
            if key is None:
                self._quotas.take(f"wrong:{address}", _WRONG_KEYS, what="too many wrong keys")
                raise Refused(
                    "this key is not valid: it is wrong, expired or revoked", code="unauthorized", headers=_CHALLENGE
                )
            caller = Caller(key.id, key.name, key.scope, has_key=True)
        self._quotas.take_request(caller.id)
        return caller


def presented(headers: Headers) -> str:
    """The secret that a request carries as a bearer token or as `X-Api-Key`; empty for none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    return bearer or headers.get("x-api-key", "").strip()


def keyless() -> Refused:
    """The answer to whoever has no key where one is needed."""
    said = "this needs a key: send it as `Authorization: Bearer …`; `penstock keys create` makes one"
    return Refused(said, code="unauthorized", headers=_CHALLENGE)


def allow(caller: Caller, needed: KeyScope, *, read_only: bool) -> None:
    """Raise `Refused` unless the caller may do what needs this scope: 401 without a key, 403 with a lesser one."""
    if caller.scope is None:
        raise keyless()
    if not caller.scope.includes(needed):
        raise Refused(f"this needs a key with the scope {needed}; yours has {caller.scope}", code="forbidden")
    if read_only and needed is not KeyScope.READ:
        raise Refused("this API is read-only (PENSTOCK_API__READ_ONLY)", code="read_only")
