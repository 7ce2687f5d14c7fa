"""Pages and fragments from templates, which escape all values."""

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

NOTICE = "penstock_said"
"""The cookie that carries an action's message to the next page."""
MAX_NOTICE = 500
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "same-origin",  # `no-referrer` would give forms the origin `null`
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class May:
    """The rights of a page's caller."""

    read: bool = False
    write: bool = False
    admin: bool = False


def may(caller: Caller, *, read_only: bool) -> May:
    """Return the caller's rights; in read-only mode no caller may change anything."""
    if caller.scope is None:
        return May()
    changes = not read_only
    return May(True, changes and caller.scope.includes(Scope.WRITE), changes and caller.scope.includes(Scope.ADMIN))


def _now() -> datetime:
    return datetime.now(UTC)


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("pipeline.interfaces.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= words.FILTERS
    environment.globals |= {
        "url": addresses.url,
        "asset": lambda name: addresses.url(addresses.asset(name)),
        "utc_now": _now,
        "plural": words.plural,
    }
    environment.globals["parts"] = environment.get_template("parts.html").module
    return environment


_TEMPLATES = _environment()


def piece(template: str, **values: Any) -> Markup:
    """Return the HTML of a template for a part of a page, the same for all callers."""
    return Markup(_TEMPLATES.get_template(template).render(**values))  # noqa: S704  # escaped within


def screen(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Render a template as a whole page for this caller. Shows the message of the last action once."""
    caller: Caller | None = getattr(request.state, "caller", None)
    settings = request.app.state.context.settings.api
    common: dict[str, Any] = {
        "caller": caller,
        "may": may(caller, read_only=settings.read_only) if caller else May(),
        "read_only": settings.read_only,
        "here": addresses.path_of(request),
        "address": _address(request),
        "notice": unquote(request.cookies.get(NOTICE, ""))[:MAX_NOTICE],
        "now": _now(),
    }
    answer = HTMLResponse(_TEMPLATES.get_template(template).render(common | values), status, dict(HEADERS))
    if common["notice"]:
        answer.delete_cookie(NOTICE, path="/")
    return answer


def _address(request: Request) -> str:
    """Return the request's path and query, from which htmx fetches the page again."""
    query = request.scope["query_string"].decode("latin-1")
    path = addresses.url(addresses.path_of(request))
    return f"{path}?{query}" if query else path
