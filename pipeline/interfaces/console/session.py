"""Login with a key: the browser holds a session afterwards, never the key."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import StringConstraints
from starlette.responses import Response

from pipeline.interfaces.console import addresses
from pipeline.interfaces.console.page import HEADERS, screen
from pipeline.interfaces.http.dependencies import InContext, WithQuotas
from pipeline.interfaces.http.fields import CLEAN, Line
from pipeline.interfaces.http.identity import SESSION
from pipeline.operations.quotas import WRONG_KEYS
from pipeline.storage import api_keys, api_sessions

router = APIRouter(include_in_schema=False)
Key = Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True), CLEAN]
LONGEST = timedelta(days=7)


@router.get("/login")
def show(request: Request, to: Annotated[Line, Query(alias="next")] = "") -> Response:
    """Show the form, or redirect a caller who needs no login to the requested page."""
    if request.state.caller.scope is not None:
        return RedirectResponse(addresses.url(addresses.within(to)), 303, dict(HEADERS))
    return _form(request, to)


def _form(request: Request, to: str, wrong: str = "", status: int = 200) -> HTMLResponse:
    return screen(request, "login.html", status=status, to=addresses.within(to), wrong=wrong)


@router.post("/login")
def log_in(
    request: Request,
    context: InContext,
    quotas: WithQuotas,
    key: Annotated[Key, Form()],
    to: Annotated[Line, Form(alias="next")] = "",
) -> Response:
    """Start a session for this key, in a cookie that no script can read. 401 for a wrong key; 429 after too many, also
    for a right one."""
    tries = f"wrong:{request.client.host if request.client else 'local'}"
    quotas.take(tries, WRONG_KEYS, reason="too many wrong keys")
    api_key = api_keys.authenticate(context, key)
    if api_key is None:
        return _form(request, to, "Invalid key: it is wrong, expired or revoked.", 401)
    quotas.take(tries, WRONG_KEYS, -1)
    # A TLS proxy may forward plain HTTP: the page's own address shows whether the browser used TLS.
    origin = request.headers.get("origin", "null")
    secure = origin.startswith("https:") if origin != "null" else bool(context.settings.api.tls_certificate)
    answer = RedirectResponse(addresses.url(addresses.within(to)), 303, dict(HEADERS))
    answer.set_cookie(
        SESSION,
        api_sessions.begin(context, api_key, LONGEST),
        max_age=int(LONGEST.total_seconds()),
        path="/",
        httponly=True,
        samesite="lax",
        secure=secure,
    )
    return answer


@router.post("/logout")
def log_out(request: Request, context: InContext) -> Response:
    """End the session, and clear the browser's cache of page pictures."""
    api_sessions.end(context, request.cookies.get(SESSION, ""))
    answer = RedirectResponse(addresses.url(addresses.LOGIN), 303, {**HEADERS, "Clear-Site-Data": '"cache"'})
    answer.delete_cookie(SESSION, path="/")
    return answer
