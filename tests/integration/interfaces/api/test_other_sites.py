"""Links on other sites have no effects for a user with a session's cookie, or where no key is needed."""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from fastapi.routing import APIRoute
from sqlalchemy import event

from pipeline.interfaces import compatibility as compat
from pipeline.interfaces import rest as v1
from pipeline.interfaces.api.app import PREFIX
from pipeline.interfaces.console import screens
from pipeline.interfaces.http.identity import SESSION
from pipeline.operations.quotas import Quotas
from pipeline.storage import api_keys, api_sessions
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.integration.interfaces.api.conftest import Connect

LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
STREAMS = {f"{PREFIX}/events"}
"""Routes whose answers do not end."""
PAID = [f"{PREFIX}/screenshots/search", f"{PREFIX}/music/search", "/console/screenshots", "/console/music/search"]
"""GETs that may ask a provider."""


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_API__REQUESTS_PER_MIN": "0"}


@pytest.fixture
def changes(context: Context) -> Iterator[list[str]]:
    """Statements that change rows, except updates of a credential's last use."""
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if re.match(r"\s*(INSERT|UPDATE|DELETE)(?! api_(keys|sessions) SET last_used_at)", statement):
            statements.append(statement)

    event.listen(context.db.engine, "before_cursor_execute", note)
    yield statements
    event.remove(context.db.engine, "before_cursor_execute", note)


@pytest.fixture
def spending(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The callers whose spending was checked."""
    callers: list[str] = []
    monkeypatch.setattr(Quotas, "check_spending", lambda _, caller: callers.append(caller))
    return callers


@pytest.mark.parametrize("has_session", [False, True], ids=["without a key", "with a session"])
def test_a_link_on_another_site_spends_and_changes_nothing_on_any_route(
    context: Context, connect: Connect, changes: list[str], spending: list[str], has_session: bool
) -> None:
    client = connect()
    if has_session:
        key = api_keys.create(context, "desk", Scope.ADMIN)[1]
        client.cookies.set(SESSION, api_sessions.begin(context, key, timedelta(days=1)))
    parts = ((PREFIX, v1.ROUTERS), ("", compat.ROUTERS), ("", screens.ROUTERS))
    routes = [(prefix, route) for prefix, routers in parts for router in routers for route in router.routes]
    paths = {
        f"{prefix}{route.path}"
        for prefix, route in routes
        if isinstance(route, APIRoute) and "GET" in (route.methods or ())
    } - STREAMS
    assert set(PAID) <= paths
    client.get("/console/")  # stores the settings of a new database
    changes.clear()
    # With a session, request every route. Without a key, the same dependency decides, so routes that may spend suffice.
    for path in sorted(paths) if has_session else PAID:
        client.get(re.sub(r"\{[^}]*\}", "1", path), params={"q": "x"}, headers=LINK, follow_redirects=False)
        assert (spending, changes) == ([], []), path
    assert len(paths) > 80
    for number, path in enumerate(PAID):
        assert client.get(path, params={"q": "x"}, headers=LINK).status_code == 403
        client.get(path, params={"q": "x"}, headers={"sec-fetch-site": "same-origin"})
        assert len(spending) == number + 1, "a page of the console may spend"
