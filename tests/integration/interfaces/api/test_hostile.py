"""What nobody who means well would send: junk in cursors, moments, origins, names, JSON and forms."""

import base64
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.storage.context import Context
from tests.integration.interfaces.api.test_skeleton import DOCUMENTS, MISSING, problem
from tests.support.documents import insert_document

JUNK = [
    '["0001-01-01T00:00:00+23:59","a"]', '["9999-12-31T23:59:59-23:59","a"]', '["2026-01-01T00:00:00Z","\\u0000"]',
    '["2026-01-01T00:00:00Z","\\ud800"]', "[NaN]", '[NaN,"x"]', '[1e999,"x"]', f"[{'9' * 300}]",
    "[-9223372036854775809]", "[9223372036854775807]", "[9223372036854775807,1]", "[-1e18,3]",
    "[1,9223372036854775807]", "[null]", "{}",
    "[" * 100, '["\\u202e"]', "[[1]]",
]  # fmt: skip
"""What a list must not have given as a cursor; some of it could be one."""
EXTREMES = ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-01-01T00:00:00", "1e400", "NaN"]


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_API__REQUESTS_PER_MIN": "0"}


def operations(api: TestClient) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(method, path, description) of every operation."""
    for path, methods in api.get("/openapi.json").json()["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def at(path: str, context: Context) -> str:
    """The path of something that is there, or at least of something that may be."""
    if "{document_id}" in path:
        known = insert_document(context, DocumentStatus.COMPLETED, [PageStatus.COMPLETED])
        path = path.replace("{document_id}", known)
    return re.sub(r"\{[^}]*\}", "1", path)


def cursor(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def test_no_list_stumbles_over_its_cursor(api: TestClient, context: Context) -> None:
    def has_cursor(operation: dict[str, Any]) -> bool:
        return any(one["name"] == "cursor" for one in operation.get("parameters", []))

    lists = [at(path, context) for _, path, operation in operations(api) if has_cursor(operation)]
    assert len(lists) >= 6
    for path in lists:
        for junk in JUNK:
            answer = api.get(path, params={"cursor": cursor(junk)})
            assert answer.status_code in {200, 400, 404, 422}, (path, junk, answer.text)
    for junk in JUNK:
        chosen = {"all_matching": True, "cursor": cursor(junk)}
        problem(api.post(f"{DOCUMENTS}/actions/cancel", json=chosen), 400, "bad_cursor")


@pytest.mark.parametrize("moment", EXTREMES)
def test_moments_that_no_database_knows_are_refused(api: TestClient, moment: str) -> None:
    for name in ("created_from", "created_before"):
        problem(api.get(DOCUMENTS, params={name: moment}), 422, "invalid")
        chosen = {"all_matching": True, "filter": {name: moment}}
        problem(api.post(f"{DOCUMENTS}/actions/cancel", json=chosen), 422, "invalid")
    problem(api.post("/api/v1/webhooks/endpoints/ep_1/replay", json={"since": moment}), 422, "invalid")


@pytest.mark.parametrize("origin", ["http://[::1", "http://[v1.x]", "\x80", "://", "http://127.0.0.1@evil.example"])
def test_an_origin_that_is_none_is_foreign(api: TestClient, origin: str) -> None:
    sent = [(b"origin", origin.encode("latin-1"))]
    problem(api.post(f"{MISSING}/cancel", headers=sent), 403, "bad_origin")
