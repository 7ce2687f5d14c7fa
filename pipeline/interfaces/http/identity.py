"""Identifies the caller, and counts their requests, before anything reads the body.

A key identifies its holder. Where the server needs no key, a request without one comes from this machine, and may do
everything, as on the command line.
"""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any

from anyio import from_thread
from anyio.to_thread import run_sync
from starlette.datastructures import Headers
from starlette.requests import Request, cookie_parser
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.engine.accounts import CALLER
from pipeline.interfaces.http.hosts import SAFE, netloc_of
from pipeline.operations.caller import Caller
from pipeline.operations.quotas import WRONG_KEYS, Quotas
from pipeline.operations.refusal import CHALLENGE, Refused, keyless
from pipeline.storage import api_keys, api_sessions, upload_tickets
from pipeline.storage.api_keys import Scope as KeyScope
from pipeline.storage.context import Context

_MAX_SECRET = 200
SESSION = "penstock_session"
"""The cookie that holds a session of the console."""
TICKETED = "/mcp/uploads/"
"""The only address under which a ticket for an upload counts, followed by the upload's id."""
LOGIN = "/console/login"
"""The only address that takes a POST without a key."""


class CallerMiddleware:
    """Puts the `Caller` into the request's state. Raises `Refused`: 401 for a wrong key, or a change without the key
    that it needs; 403 for a change that another site's page sent with a session's cookie; 429 for too many requests or
    wrong keys."""

    def __init__(self, app: ASGIApp, context: Context, quotas: Quotas, ending: Event, *, keys_required: bool) -> None:
        self._app = app
        self._context = context
        self._quotas = quotas
        self._keys_required = keys_required
        self._known = partial(Caller, context, quotas=quotas, ending=ending)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in {"http", "websocket"}:
            address = scope["client"][0] if scope.get("client") else "local"
            headers = Headers(scope=scope)
            secret, path = presented(headers), scope["path"].removeprefix(self._context.settings.api.prefix)
            if secret.startswith(upload_tickets.PREFIX) and scope.get("method") == "PUT" and path.startswith(TICKETED):
                caller = await run_sync(self._of_ticket, secret, path.removeprefix(TICKETED), address)
            else:
                caller = await run_sync(self._caller, secret, _session(headers), address)
            if scope["type"] == "http":
                is_gone = Request(scope, receive).is_disconnected
                caller = replace(caller, is_gone=is_gone, has_left=partial(_has_left, is_gone))
                if scope["method"] not in SAFE:
                    self._check_change(caller, headers, scope["path"])
            scope.setdefault("state", {})["caller"] = caller
            CALLER.set(caller.id)
        await self._app(scope, receive, send)

    def _check_change(self, caller: Caller, headers: Headers, path: str) -> None:
        """Raise `Refused`, before anything reads the body, for a change without rights, except a login; and for a
        login, or a change with a session's cookie, that no page of our own sent."""
        logs_in = path.removeprefix(self._context.settings.api.prefix) == LOGIN
        if caller.scope is None and not logs_in:
            raise keyless()
        # An origin that the settings allow has a key of its own, and no use for a session's cookie.
        same_host = netloc_of(headers.get("origin", "").lower()) == headers.get("host", "").lower()
        if (caller.session or logs_in) and not (same_host or headers.get("sec-fetch-site") == "same-origin"):
            raise Refused("no page of this console sent this: open the console, and try again", code="bad_origin")

    def _of_ticket(self, secret: str, upload_id: str, address: str) -> Caller:
        """The caller who asked for the ticket, to whom the upload counts. Raises `Refused` as for a wrong key."""
        ticket = upload_tickets.find(self._context, secret) if len(secret) <= _MAX_SECRET else None
        if ticket is None or ticket.upload_id != upload_id:
            raise self._wrong_key(address, "this ticket is not valid: it is used or expired; call request_upload again")
        caller = self._known(ticket.owner, ticket.owner_name, KeyScope.WRITE, has_key=ticket.has_key)
        self._quotas.take_request(caller.id)
        return caller

    def _wrong_key(self, address: str, message: str) -> Refused:
        """Count a wrong key of this address; return the error to raise. Raises `Refused` (429) after too many."""
        self._quotas.take(f"wrong:{address}", WRONG_KEYS, reason="too many wrong keys")
        return Refused(message, code="unauthorized", headers=CHALLENGE)

    def _caller(self, secret: str, session: str, address: str) -> Caller:
        in_session = api_sessions.authenticate(self._context, session) if session and not secret else None
        if in_session:
            session_id, key = in_session
            caller = self._known(key.id, key.name, key.scope, has_key=True, session=session_id)
        elif not secret:
            caller = self._known(f"address:{address}", address, None if self._keys_required else KeyScope.ADMIN)
        else:
            presented_key = api_keys.authenticate(self._context, secret) if len(secret) <= _MAX_SECRET else None
            if presented_key is None:
                raise self._wrong_key(address, "this key is not valid: it is wrong, expired or revoked")
            caller = self._known(presented_key.id, presented_key.name, presented_key.scope, has_key=True)
        self._quotas.take_request(caller.id)
        return caller


def _has_left(is_gone: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
    try:
        return from_thread.run(is_gone)
    except RuntimeError:  # not one of the server's threads
        return False


def presented(headers: Headers) -> str:
    """The secret that a request carries as a bearer token, else as `X-Api-Key`; empty for none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    return bearer or headers.get("x-api-key", "").strip()


def _session(headers: Headers) -> str:
    cookie: str = cookie_parser(headers.get("cookie", "")[:8000]).get(SESSION, "")
    return cookie if len(cookie) <= _MAX_SECRET else ""
