"""Who calls: found out before anything of the request is read, and how much they may ask for.

With a key: whoever holds it. Without one, where none is needed: whoever is on this machine, who may do everything, as
on the command line.
"""

from dataclasses import dataclass

from anyio.to_thread import run_sync
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.engine.accounts import CALLER
from pipeline.interfaces.http.errors import Refused
from pipeline.interfaces.http.hosts import SAFE, netloc_of
from pipeline.interfaces.http.quotas import WRONG_KEYS, Quotas
from pipeline.storage import api_keys, api_sessions
from pipeline.storage.api_keys import Scope as KeyScope
from pipeline.storage.context import Context

_MAX_SECRET = 200
SESSION = "penstock_session"
"""The cookie that holds a session of the console."""
LOGIN = "/console/login"
"""The one address to which something is sent before there is a key."""
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="penstock"'}


@dataclass(frozen=True)
class Caller:
    """Who calls. `id` names the key or the address; `scope` is None without a key where one is needed."""

    id: str
    name: str
    scope: KeyScope | None
    has_key: bool = False
    session: str = ""
    """The id of the session through which the key is used: a cookie, which browsers send by themselves."""


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
            headers = Headers(scope=scope)
            caller = await run_sync(self._caller, presented(headers), _session(headers), address)
            if scope["method"] not in SAFE:
                self._check_change(caller, headers, scope["path"])
            scope.setdefault("state", {})["caller"] = caller
            CALLER.set(caller.id)
        await self._app(scope, receive, send)

    def _check_change(self, caller: Caller, headers: Headers, path: str) -> None:
        """Raise `Refused` before any of a body is read: without a key, or where a browser does not say that it is our
        own page which sends its cookie."""
        logs_in = path.removeprefix(self._context.settings.api.prefix) == LOGIN
        if caller.scope is None and not logs_in:
            raise keyless()
        # An origin that is allowed by the settings has a key of its own, and no use of somebody's cookie.
        ours = netloc_of(headers.get("origin", "").lower()) == headers.get("host", "").lower()
        if (caller.session or logs_in) and not (ours or headers.get("sec-fetch-site") == "same-origin"):
            raise Refused("this was not sent by a page of this console: open it, and try again", code="bad_origin")

    def _caller(self, secret: str, session: str, address: str) -> Caller:
        found = api_sessions.authenticate(self._context, session) if session and not secret else None
        if found:
            session_id, own = found
            caller = Caller(own.id, own.name, own.scope, has_key=True, session=session_id)
        elif not secret:
            caller = Caller(f"address:{address}", address, None if self._keys_required else KeyScope.ADMIN)
        else:
            key = api_keys.authenticate(self._context, secret) if len(secret) <= _MAX_SECRET else None
            if key is None:
                self._quotas.take(f"wrong:{address}", WRONG_KEYS, what="too many wrong keys")
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


def _session(headers: Headers) -> str:
    found: str = cookie_parser(headers.get("cookie", "")[:8000]).get(SESSION, "")
    return found if len(found) <= _MAX_SECRET else ""


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
