"""The text of docs/reference/rest.md, from the routes. `tests.support.reference` writes the page."""

from collections.abc import Iterator
from pathlib import Path

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, RouteContext
from starlette.routing import BaseRoute

from pipeline.interfaces import compatibility as compat
from pipeline.interfaces import rest as v1
from pipeline.interfaces.api.app import PREFIX
from pipeline.interfaces.http import dependencies
from pipeline.storage.api_keys import Scope

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/rest.md"
_ABOUT = """# Endpoints and scopes

`make reference` writes this page from the routes. [REST API](../how-to/api.md) describes requests and answers,
[other APIs](../how-to/clients.md) those of the last table. A key needs the scope in the last column; each scope
includes those before it: `read`, `write`, `admin`. An address without a scope needs no key.
"""
_SCOPES = {
    dependencies.reader[0].dependency: Scope.READ,
    dependencies.writer[0].dependency: Scope.WRITE,
    dependencies.admin[0].dependency: Scope.ADMIN,
    dependencies.seeing[0].dependency: Scope.ADMIN,
}


def scope_of(route: APIRoute | RouteContext) -> Scope | str:
    """Return the highest scope that a dependency of the route requires, or an empty string."""

    def required(dependant: Dependant) -> Iterator[Scope]:
        if dependant.call in _SCOPES:
            yield _SCOPES[dependant.call]
        for dependency in dependant.dependencies:
            yield from required(dependency)

    return max(required(route.dependant), key=list(Scope).index, default="")


def page() -> str:
    """Return the page for the present routes."""
    own = _table(f"Below `{PREFIX}`", [route for router in v1.ROUTERS for route in router.routes])
    others = _table("Addresses of other APIs", [route for router in compat.ROUTERS for route in router.routes])
    return "\n".join([_ABOUT, *own, "", *others, ""])


def _table(name: str, routes: list[BaseRoute]) -> Iterator[str]:
    yield from (f"| {name} | | Scope |", "|---|---|---|")
    rows = [
        (route.path, method, " ".join(route.description.partition("\n\n")[0].split()), scope_of(route))
        for route in routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    ]
    for path, method, summary, scope in sorted(rows):
        yield f"| `{method} {path}` | {summary} | {scope} |"
