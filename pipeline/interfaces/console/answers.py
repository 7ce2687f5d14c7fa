"""What actions answer: a sentence, and the page as it is then."""

from urllib.parse import quote, urlsplit

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.responses import Response

from pipeline.interfaces.console import addresses
from pipeline.interfaces.console.page import HEADERS, MAX_SAID, SAID, piece, screen
from pipeline.interfaces.http.errors import ProblemResponse

MAX_COOKIE = 900
"""Octets; each takes up to three, and browsers take four thousand."""
_TITLES = {403: "This is not for you", 404: "There is nothing here", 500: "Penstock failed"}
CHANGED = "changed"
"""The event upon which a page is fetched again."""


def is_partial(request: Request) -> bool:
    """Whether htmx asks, which puts the answer into the page that is there."""
    return request.headers.get("hx-request") == "true"


def done(request: Request, said: str, to: str = "") -> Response:
    """What was done, in a sentence. The page is shown as it is then, or the one at `to`."""
    said = said[:MAX_SAID]
    if is_partial(request) and not to:
        return HTMLResponse(piece("said.html", words=said, bad=False), headers={**HEADERS, "HX-Trigger": CHANGED})
    if is_partial(request):
        answer: Response = Response(headers={**HEADERS, "HX-Redirect": addresses.url(to)})
    else:
        answer = RedirectResponse(addresses.url(to or _came_from(request)), 303, dict(HEADERS))
    told = quote(said.encode()[:MAX_COOKIE].decode(errors="ignore"))
    answer.set_cookie(SAID, told, max_age=60, path="/", httponly=True, samesite="strict")
    return answer


def problem(problem: ProblemResponse, request: Request) -> Response:
    """An error as a page, or as a sentence in the page that is there; without a key, the way to the login."""
    addresses.place(request)
    headers = {**dict(problem.headers), **HEADERS}
    for name in ("content-length", "content-type"):
        headers.pop(name, None)
    path = addresses.path_of(request)
    if problem.status_code == 401 and path != addresses.LOGIN:
        asked = request.method == "GET" and not is_partial(request)
        to = _with_query(path, request.url.query) if asked else _came_from(request)
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
        title=_TITLES.get(problem.status_code, "That did not work"),
        detail=problem.detail,
        code=problem.code,
        back=addresses.within(_came_from(request)),
    )
    answer.headers.update(headers)
    return answer


def _came_from(request: Request) -> str:
    """The page of ours that a form was on, with its query; the overview if that is not known."""
    try:
        said = urlsplit(request.headers.get("hx-current-url") or request.headers.get("referer", ""))
    except ValueError:
        return f"{addresses.ROOT}/"
    prefix: str = request.app.state.context.settings.api.prefix
    path = addresses.within(said.path.removeprefix(prefix))
    return _with_query(path, said.query if path != f"{addresses.ROOT}/" else "")


def _with_query(path: str, query: str) -> str:
    return f"{path}?{query}" if query else path
