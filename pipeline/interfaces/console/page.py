"""Pages and pieces of pages, from templates. Whatever is put into them is escaped."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pipeline.interfaces.console import addresses, words
from pipeline.operations.caller import Caller
from pipeline.storage.api_keys import Scope

SAID = "penstock_said"
"""The cookie that keeps what an action said until the next page is there."""
MAX_SAID = 500
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "same-origin",  # with `no-referrer`, forms would have the origin `null`
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class May:
    """What whoever looks at a page may do."""

    read: bool = False
    write: bool = False
    admin: bool = False


def may(caller: Caller, *, read_only: bool) -> May:
    """What this caller may do; in read-only mode, nobody changes anything."""
    if caller.scope is None:
        return May()
    changes = not read_only
    return May(True, changes and caller.scope.includes(Scope.WRITE), changes and caller.scope.includes(Scope.ADMIN))


def _now() -> datetime:
    return datetime.now(UTC)


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("pipeline.interfaces.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= words.FILTERS
    made.globals |= {
        "url": addresses.url,
        "asset": lambda name: addresses.url(addresses.asset(name)),
        "utc_now": _now,
        "plural": words.plural,
    }
    made.globals["parts"] = made.get_template("parts.html").module
    return made


_TEMPLATES = _environment()


def piece(template: str, **values: Any) -> Markup:
    """A part of a page, the same for all who look."""
    return Markup(_TEMPLATES.get_template(template).render(**values))  # noqa: S704  # escaped within


def screen(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A whole page, for this caller."""
    caller: Caller | None = getattr(request.state, "caller", None)
    settings = request.app.state.context.settings.api
    given: dict[str, Any] = {
        "caller": caller,
        "may": may(caller, read_only=settings.read_only) if caller else May(),
        "read_only": settings.read_only,
        "here": addresses.path_of(request),
        "address": _address(request),
        "said": unquote(request.cookies.get(SAID, ""))[:MAX_SAID],
        "now": _now(),
    }
    answer = HTMLResponse(_TEMPLATES.get_template(template).render(given | values), status, dict(HEADERS))
    if given["said"]:
        answer.delete_cookie(SAID, path="/")
    return answer


def _address(request: Request) -> str:
    """Where the request went, with its query: where a page is fetched from again."""
    query = request.scope["query_string"].decode("latin-1")
    path = addresses.url(addresses.path_of(request))
    return f"{path}?{query}" if query else path
