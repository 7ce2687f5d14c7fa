import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from pipeline.interfaces import rest as v1
from pipeline.interfaces.api.app import PREFIX
from pipeline.interfaces.api.server import listen
from pipeline.interfaces.http import dependencies
from pipeline.storage import api_keys
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.integration.interfaces.api.conftest import Connect
from tests.support import endpoints

DOCUMENTS = f"{PREFIX}/documents"
MISSING = f"{DOCUMENTS}/0123456789abcdef"


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_API__REQUESTS_PER_MIN": "0"}


def problem(response: Any, status: int, code: str) -> str:
    """Check that an answer is this problem, and return its detail."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert (body["status"], body["code"], body["type"]) == (status, code, "about:blank")
    assert isinstance(body["detail"], str)
    return str(body["detail"])


def test_errors_are_problem_details(api: TestClient) -> None:
    assert "0123456789abcdef" in problem(api.get(MISSING), 404, "unknown_document")
    problem(api.get("/nowhere"), 404, "not_found")
    refused = api.put(MISSING)
    problem(refused, 405, "method_not_allowed")
    assert refused.headers["allow"]
    counts = api.delete(f"{DOCUMENTS}/counts")
    problem(counts, 405, "method_not_allowed")
    assert counts.headers["allow"] == "GET"
    problem(api.delete(f"{DOCUMENTS}/nothing"), 422, "invalid")
    assert "limit" in problem(api.get(DOCUMENTS, params={"limit": 0}), 422, "invalid")
    problem(api.get(DOCUMENTS, params={"cursor": "junk"}), 400, "bad_cursor")
    problem(api.get(f"{DOCUMENTS}/%00"), 422, "invalid")
    assert "\x00" not in problem(api.get(DOCUMENTS, params={"q": "a\x00b"}), 422, "invalid")


OTHER_APIS = ("/file_parse", "/process", "/retrieval", "/v1/")


def test_every_endpoint_checks_a_right() -> None:
    known = (dependencies.reader, dependencies.writer, dependencies.admin, dependencies.seeing)
    rights = {kind[0].dependency for kind in known}

    def asks(dependant: Dependant) -> bool:
        return dependant.call in rights or any(asks(child) for child in dependant.dependencies)

    routes = [route for router in v1.ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    assert routes
    assert [route.path for route in routes if not asks(route.dependant)] == []


ENDLESS = f"{PREFIX}/events"


def documented() -> Iterator[tuple[str, str, str]]:
    """Yield the method, a path and the scope of each endpoint."""
    rows = re.findall(r"^\| `(\w+) (\S+)` \| .* \| (\w+) \|$", endpoints.PAGE.read_text(), re.MULTILINE)
    for method, path, scope in rows:
        yield method, ("" if path.startswith(OTHER_APIS) else PREFIX) + re.sub(r"\{\w+\}", "1", path), scope


def test_every_endpoint_takes_a_key_of_the_scope_in_the_docs_and_refuses_a_lower_one(
    connect: Connect,
) -> None:
    lower = {"read": connect(host="0.0.0.0"), "write": connect(Scope.READ), "admin": connect(Scope.WRITE)}
    enough = {scope.name.lower(): connect(scope, host="0.0.0.0") for scope in Scope}
    count = 0
    for method, path, scope in documented():
        answer = lower[scope].request(method, path)
        assert answer.status_code == (401 if scope == "read" else 403), (method, path)
        if path != ENDLESS:
            answer = enough[scope].request(method, path)
            assert answer.status_code not in {401, 403}, (method, path, answer.text)
        count += 1
    assert count > 150


def test_a_read_only_server_refuses_every_change(connect: Connect, context: Context) -> None:
    context.settings.api.read_only = True
    client = connect(Scope.ADMIN)
    for method, path, scope in documented():
        if scope != "read" and method != "GET":
            problem(client.request(method, path), 403, "read_only")


def test_beyond_this_machine_a_key_is_needed_until_it_is_revoked(context: Context, connect: Connect) -> None:
    problem(connect(host="0.0.0.0").get(DOCUMENTS), 401, "unauthorized")
    secret, key = api_keys.create(context, "mine", Scope.READ)
    client = connect(host="0.0.0.0")
    for headers in ({"authorization": f"Bearer {secret}"}, {"x-api-key": secret}):
        assert client.get(DOCUMENTS, headers=headers).status_code == 200
    api_keys.revoke(context, key.id)
    problem(client.get(DOCUMENTS, headers={"x-api-key": secret}), 401, "unauthorized")
    problem(client.get(DOCUMENTS, headers={"x-api-key": "pstk_guess"}), 401, "unauthorized")


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_is_answered_without_a_key(connect: Connect, path: str) -> None:
    health = connect(host="0.0.0.0").get(path).json()
    assert health["status"] == "ok", health


def test_answers_do_not_wait_for_acknowledgements(context: Context) -> None:
    with (
        listen(context, "127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
