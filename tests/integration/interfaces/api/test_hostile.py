"""Hostile requests: junk in cursors, times, origins, names, JSON and forms."""

import base64
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.storage import api_keys
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.integration.interfaces.api.conftest import Connect
from tests.integration.interfaces.api.test_skeleton import DOCUMENTS, MISSING, problem
from tests.support.documents import insert_document
from tests.support.samples import text_pdf

JUNK = [
    '["0001-01-01T00:00:00+23:59","a"]',
    '["9999-12-31T23:59:59-23:59","a"]',
    '["2026-01-01T00:00:00Z","\\u0000"]',
    '["2026-01-01T00:00:00Z","\\ud800"]',
    "[NaN]",
    '[NaN,"x"]',
    '[1e999,"x"]',
    f"[{'9' * 300}]",
    "[-9223372036854775809]",
    "[9223372036854775807]",
    "[9223372036854775807,1]",
    "[-1e18,3]",
    "[1,9223372036854775807]",
    "[null]",
    "{}",
    "[" * 100,
    '["\\u202e"]',
    "[[1]]",
]
"""Contents of cursors that a list never returns; some are valid for some lists."""
EXTREMES = ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-01-01T00:00:00", "1e400", "NaN", "2026"]


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_API__REQUESTS_PER_MIN": "0"}


def operations(api: TestClient) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (method, path, description) of every operation."""
    for path, methods in api.get("/openapi.json").json()["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def at(path: str, context: Context) -> str:
    """Return a path with the id of an existing document, and with 1 for all other parameters."""
    if "{document_id}" in path:
        known = insert_document(context, DocumentStatus.COMPLETED, [PageStatus.COMPLETED])
        path = path.replace("{document_id}", known)
    return re.sub(r"\{[^}]*\}", "1", path)


def cursor(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.both_databases
def test_no_list_fails_at_an_invalid_cursor(api: TestClient, context: Context) -> None:
    def has_cursor(operation: dict[str, Any]) -> bool:
        return any(parameter["name"] == "cursor" for parameter in operation.get("parameters", []))

    lists = [at(path, context) for _, path, operation in operations(api) if has_cursor(operation)]
    assert len(lists) >= 6
    for number, path in enumerate(lists):
        for junk in JUNK if path == DOCUMENTS else JUNK[number % 3 :: 3]:
            answer = api.get(path, params={"cursor": cursor(junk)})
            assert answer.status_code in {200, 400, 404, 422}, (path, junk, answer.text)
    for junk in JUNK:
        chosen = {"all_matching": True, "cursor": cursor(junk)}
        problem(api.post(f"{DOCUMENTS}/actions/cancel", json=chosen), 400, "bad_cursor")


@pytest.mark.parametrize("moment", EXTREMES)
@pytest.mark.both_databases
def test_times_out_of_the_database_s_range_are_refused(api: TestClient, moment: str) -> None:
    for name in ("created_from", "created_before"):
        problem(api.get(DOCUMENTS, params={name: moment}), 422, "invalid")
        chosen = {"all_matching": True, "filter": {name: moment}}
        problem(api.post(f"{DOCUMENTS}/actions/cancel", json=chosen), 422, "invalid")
    problem(api.post("/api/v1/webhooks/endpoints/ep_1/replay", json={"since": moment}), 422, "invalid")


@pytest.mark.parametrize("origin", ["http://[::1", "http://[v1.x]", "\x80", "://", "http://127.0.0.1@evil.example"])
def test_an_invalid_origin_counts_as_foreign(api: TestClient, origin: str) -> None:
    sent = [(b"origin", origin.encode("latin-1"))]
    problem(api.post(f"{MISSING}/cancel", headers=sent), 403, "bad_origin")


def test_an_idempotent_answer_is_not_replayed_to_another_key(connect: Connect, context: Context) -> None:
    document_id = insert_document(context, DocumentStatus.PARTIAL_FAILED, [PageStatus.COMPLETED, PageStatus.FAILED])
    once, path = {"idempotency-key": "guessed"}, f"{DOCUMENTS}/{document_id}/retry-failed"
    owner, other, reader = connect(Scope.WRITE), connect(Scope.WRITE), connect(Scope.READ)
    assert owner.post(path, headers=once).status_code == 202
    assert owner.post(path, headers=once).headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in other.post(path, headers=once).headers
    problem(reader.post(path, headers=once), 403, "forbidden")
    problem(connect(host="0.0.0.0").post(path, headers=once), 401, "unauthorized")


def test_a_key_revoked_during_requests_ends_between_two_of_them(context: Context, connect: Connect) -> None:
    secret, key = api_keys.create(context, "short-lived", Scope.READ)
    client = connect(host="0.0.0.0")

    def ask(_: int) -> int:
        return int(client.get(DOCUMENTS, headers={"x-api-key": secret}).status_code)

    with ThreadPoolExecutor(3) as pool:
        before = [pool.submit(ask, number) for number in range(6)]
        api_keys.revoke(context, key.id)
        after = [pool.submit(ask, number) for number in range(6)]
    assert {status.result() for status in before} <= {200, 401}
    assert {status.result() for status in after} == {401}


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\windows\\x.pdf", "x.pdf"),
        ("a\0b.pdf", "ab.pdf"),
        ("..", "file"),
        ("\u202egnp.pdf", "gnp.pdf"),
        ("a\r\nSet-Cookie: x=1.pdf", "a  Set-Cookie_ x=1.pdf"),
        ("x" * 5000, "x" * 200),
    ],
)
def test_a_file_name_cannot_become_a_path_or_a_header(api: TestClient, tmp_path: Path, sent: str, stored: str) -> None:
    content = text_pdf(tmp_path / "report.pdf", [["text"]]).read_bytes()
    headers = {"content-type": "application/pdf", "x-filename": quote(sent)}
    answer = api.post(DOCUMENTS, params={"fresh": "true"}, content=content, headers=headers)
    assert (answer.status_code, answer.json()["filename"]) == (202, stored)
