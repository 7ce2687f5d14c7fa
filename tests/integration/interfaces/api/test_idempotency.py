import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update
from starlette.testclient import TestClient

from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.storage import idempotency
from pipeline.storage.context import Context
from pipeline.storage.idempotency import REQUESTS, AnotherRequest, Answer, KeyClaim, StillRunning
from tests.integration.interfaces.api.test_documents import send
from tests.integration.interfaces.api.test_skeleton import DOCUMENTS, problem
from tests.support.documents import insert_document
from tests.support.samples import text_pdf

DAY = timedelta(days=1)


def begin(context: Context, fingerprint: str = "f" * 64) -> KeyClaim | Answer:
    return idempotency.begin(context, "me", "key", fingerprint, DAY)


def test_a_repeated_request_is_done_once(api: TestClient, context: Context) -> None:
    failed = insert_document(context, DocumentStatus.PARTIAL_FAILED, [PageStatus.COMPLETED, PageStatus.FAILED])
    key = {"idempotency-key": "once"}
    first = api.post(f"{DOCUMENTS}/{failed}/retry-failed", headers=key)
    assert first.status_code == 202
    second = api.post(f"{DOCUMENTS}/{failed}/retry-failed", headers=key)
    assert (second.status_code, second.json()) == (202, first.json())
    assert second.headers["location"] == first.headers["location"]
    assert second.headers["idempotency-replayed"] == "true"
    problem(api.post(f"{DOCUMENTS}/{failed}/cancel", headers=key), 422, "idempotency_key")
    problem(api.post(f"{DOCUMENTS}/{failed}/cancel", headers={"idempotency-key": "x" * 300}), 400, "bad_request")


def test_a_repeated_upload_is_recognised_by_its_content(api: TestClient, tmp_path: Path) -> None:
    pdf = text_pdf(tmp_path / "report.pdf", [["text"]])
    api.headers["idempotency-key"] = "upload"
    first, second = (send(api, pdf, fresh="true") for _ in range(2))  # each request draws its own boundary
    assert second.json() == first.json()
    assert len(api.get(DOCUMENTS).json()["items"]) == 1
    problem(send(api, pdf, fresh="true", page_range="1"), 422, "idempotency_key")


def test_an_error_leaves_the_key_free(api: TestClient, context: Context) -> None:
    document_id = insert_document(context, DocumentStatus.COMPLETED, [PageStatus.COMPLETED])
    key = {"idempotency-key": "later"}
    problem(api.post(f"{DOCUMENTS}/{document_id}/resume", headers=key), 409, "illegal_state")
    assert api.post(f"{DOCUMENTS}/{document_id}/cancel", headers=key).status_code == 200


def test_one_of_several_simultaneous_requests_runs_and_the_others_are_refused(context: Context) -> None:
    def attempt(_: int) -> str:
        try:
            return type(begin(context)).__name__
        except StillRunning:
            return "still running"

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(attempt, range(6))) == ["KeyClaim", *["still running"] * 5]


def test_an_idempotency_key_is_freed_when_its_process_ends_or_it_expires(context: Context) -> None:
    lost = begin(context)
    assert isinstance(lost, KeyClaim)
    with context.db.transaction() as session:
        session.execute(update(REQUESTS).values(running_until=context.db.now() - DAY))
    second = begin(context)
    assert isinstance(second, KeyClaim)
    idempotency.settle(context, lost, Answer(200, json.dumps([]), b"late"))  # a request without its claim is silent
    with pytest.raises(StillRunning):
        begin(context)
    idempotency.settle(context, second, Answer(200, json.dumps([]), b"kept"))
    answer = begin(context)
    assert isinstance(answer, Answer)
    assert answer.body == b"kept"
    with pytest.raises(AnotherRequest):
        begin(context, "g" * 64)
    with context.db.transaction() as session:
        session.execute(update(REQUESTS).values(expires_at=context.db.now() - DAY))
    assert idempotency.expired(context).due(context) == 1
    assert isinstance(begin(context, "g" * 64), KeyClaim)
    assert idempotency.expired(context).remove(context) == 0
