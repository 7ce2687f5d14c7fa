"""Answers to actions: a message, and the page in its new state."""

from urllib.parse import quote, urlsplit

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.responses import Response

from pipeline.interfaces.console import addresses
from pipeline.interfaces.console.page import HEADERS, MAX_NOTICE, NOTICE, piece, screen
from pipeline.interfaces.http.errors import ProblemResponse

MAX_COOKIE = 900
"""Octets. In a cookie each takes up to three, and browsers accept four thousand."""
_TITLES = {403: "Not allowed", 404: "Not found", 500: "Penstock failed"}
CHANGED = "changed"
"""The event that makes htmx fetch the page again."""


def is_partial(request: Request) -> bool:
    """Return whether htmx sent the request; it puts the answer into the current page."""
    return request.headers.get("hx-request") == "true"


def done(request: Request, message: str, to: str = "") -> Response:
    """Return the answer to a successful action: htmx shows `message` in the current page, and fetches the page again.

    A form without htmx gets a redirect (303) to its page, and with `to` both go to that console path; a cookie carries
    the message to the next page.
    """
    message = message[:MAX_NOTICE]
    if is_partial(request) and not to:
        return HTMLResponse(piece("said.html", words=message, bad=False), headers={**HEADERS, "HX-Trigger": CHANGED})
    if is_partial(request):
        answer: Response = Response(headers={**HEADERS, "HX-Redirect": addresses.url(to)})
    else:
        answer = RedirectResponse(addresses.url(to or _came_from(request)), 303, dict(HEADERS))
    quoted = quote(message.encode()[:MAX_COOKIE].decode(errors="ignore"))
    answer.set_cookie(NOTICE, quoted, max_age=60, path="/", httponly=True, samesite="strict")
    return answer


def problem(problem: ProblemResponse, request: Request) -> Response:
    """Return the answer to an error: a page, for htmx a message in the current page, for a 401 the way to the login."""
    addresses.place(request)
    headers = {**dict(problem.headers), **HEADERS}
    for name in ("content-length", "content-type"):
        headers.pop(name, None)
    path = addresses.path_of(request)
    if problem.status_code == 401 and path != addresses.LOGIN:
        is_page = request.method == "GET" and not is_partial(request)
        to = _with_query(path, request.url.query) if is_page else _came_from(request)
        login = addresses.url(f"{addresses.LOGIN}?next={quote(to)}")
        if is_partial(request):
            return Response(status_code=401, headers={**headers, "HX-Redirect": login})
        return RedirectResponse(login, 303, headers)
    if is_partial(request):
        return HTMLResponse(piece("said.html", words=problem.detail, bad=True), problem.status_code, headers)
    answer = screen(
        request,
        "error.html",
        status=problem.status_code,
        number=problem.status_code,
        title=_TITLES.get(problem.status_code, "The request failed"),
        detail=problem.detail,
        code=problem.code,
        back=addresses.within(_came_from(request)),
    )
    answer.headers.update(headers)
    return answer


def _came_from(request: Request) -> str:
    """Return the console page of the form, with its query; the overview if the request does not name it."""
    try:
        address = urlsplit(request.headers.get("hx-current-url") or request.headers.get("referer", ""))
    except ValueError:
        return f"{addresses.ROOT}/"
    prefix: str = request.app.state.context.settings.api.prefix
    path = addresses.within(address.path.removeprefix(prefix))
    return _with_query(path, address.query if path != f"{addresses.ROOT}/" else "")


def _with_query(path: str, query: str) -> str:
    return f"{path}?{query}" if query else path
