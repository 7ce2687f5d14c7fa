"""Every interface charges a retry once, and only if it happens, in every state."""

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import pytest
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from pipeline.flows.documents import service
from pipeline.flows.documents.models import PAGES
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.operations.quotas import Quotas
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.integration.interfaces.api.conftest import Connect
from tests.integration.interfaces.api.test_skeleton import DOCUMENTS, problem
from tests.support.assistant import message_of, post
from tests.support.commits import lose_answers
from tests.support.documents import document, insert_document

D, C, F = DocumentStatus, PageStatus.COMPLETED, PageStatus.FAILED
QUOTA = 5
CONSOLE = "/console/documents"
DONE, SPENT, ILLEGAL = "done", "no quota", "not in that state"
PARTIAL = {"hx-request": "true"}


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_API__PAGES_PER_DAY": str(QUOTA)}


@pytest.fixture
def charges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of pages charged and, negative, given back."""
    pages: list[int] = []
    take = Quotas.take_pages

    def take_pages(self: Quotas, caller: str, count: int) -> None:
        take(self, caller, count)
        pages.append(count)

    monkeypatch.setattr(Quotas, "take_pages", take_pages)
    return pages


def _of_status(status: int) -> str:
    return {409: ILLEGAL, 429: SPENT}.get(status, DONE if status < 400 else f"status {status}")


def _of_words(words: str) -> str:
    return SPENT if "pages in a day" in words else ILLEGAL if " is " in words or "cannot" in words else words


def _single(client: TestClient, verb: str, document_id: str) -> str:
    return _of_status(client.post(f"{DOCUMENTS}/{document_id}/{verb}").status_code)


def _bulk(client: TestClient, verb: str, document_id: str) -> str:
    acted = client.post(f"{DOCUMENTS}/actions/{verb}", json={"ids": [document_id]}).json()
    return DONE if acted["done"] else _of_words(acted["skipped"][0]["reason"])


def _console(client: TestClient, verb: str, document_id: str) -> str:
    answer = client.post(f"{CONSOLE}/{document_id}/{verb}", data={}, headers=PARTIAL, follow_redirects=False)
    return _of_status(answer.status_code)


def _console_bulk(client: TestClient, verb: str, document_id: str) -> str:
    answer = client.post(f"{CONSOLE}/actions/{verb}", data={"id": [document_id], "total": "1"}, headers=PARTIAL)
    words = unquote(answer.headers["set-cookie"])
    return DONE if "1 document is" in words else _of_words(words.partition("One is unchanged")[2])


def _assistant(client: TestClient, verb: str, document_id: str) -> str:
    arguments = {"kind": "document", "id": document_id, "all_pages": verb == "retry"}
    result = message_of(post(client, "tools/call", {"name": "retry", "arguments": arguments}))["result"]
    return _of_words(result["content"][0]["text"]) if result.get("isError") else DONE


DOORS = {
    "single": _single,
    "bulk": _bulk,
    "console": _console,
    "console-bulk": _console_bulk,
    "assistant": _assistant,
}
# (command, state of the document, states of its pages, pages to charge or None if illegal, state after the command)
CASES: dict[str, tuple[str, DocumentStatus, list[PageStatus], int | None, DocumentStatus]] = {
    "all-of-it": ("retry", D.COMPLETED, [C, C], 2, D.PENDING),
    "all-of-it-while-it-works": ("retry", D.PROCESSING, [C, F], None, D.PROCESSING),
    "failed-pages": ("retry-failed", D.PARTIAL_FAILED, [C, F], 1, D.PROCESSING),
    "failed-pages-while-it-is-paused": ("retry-failed", D.PAUSED, [C, F], None, D.PAUSED),
    "a-failed-merge": ("retry-failed", D.FAILED, [C, C], 0, D.READY_TO_MERGE),
    "a-failed-split": ("retry-failed", D.FAILED, [], 0, D.PENDING),
    "nothing-failed": ("retry-failed", D.COMPLETED, [C, C], 0, D.COMPLETED),
}


# One door runs every case. The others run both operations, charged and refused.
ASKED = [("single", case) for case in CASES] + [
    (door, case)
    for door in DOORS.keys() - {"single"}
    for case in ("all-of-it", "failed-pages", "failed-pages-while-it-is-paused")
]


@pytest.mark.parametrize("spent", [False, True], ids=["with-quota", "without-quota"])
@pytest.mark.parametrize(("door", "case"), sorted(ASKED))
def test_a_retry_is_charged_once_and_a_refused_retry_is_not(
    connect: Connect, context: Context, charges: list[int], door: str, case: str, *, spent: bool
) -> None:
    verb, status, pages, converts, after = CASES[case]
    client = connect(Scope.WRITE)
    document_id = insert_document(context, status, pages)
    if spent:
        other = insert_document(context, D.COMPLETED, [C] * QUOTA)
        assert client.post(f"{DOCUMENTS}/{other}/retry").status_code == 202
        charges.clear()
    expected = ILLEGAL if converts is None else SPENT if spent and converts else DONE
    assert DOORS[door](client, verb, document_id) == expected
    assert charges == ([converts] if converts and expected == DONE else [])
    assert document(context, document_id).status == (after if expected == DONE else status)


def test_a_retry_whose_commit_had_no_answer_is_charged_once_and_reports_success(
    connect: Connect, context: Context, charges: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(Scope.WRITE)
    document_id = insert_document(context, D.COMPLETED, [C, C])
    with monkeypatch.context() as patch:
        lose_answers(patch, context.db)
        assert client.post(f"{DOCUMENTS}/{document_id}/retry").status_code == 202
    assert charges == [2]


def _lost(*_: object) -> None:
    raise OperationalError("INSERT", {}, ConnectionError("the connection was lost"))


def test_a_retry_that_the_database_refuses_gives_its_pages_back(
    connect: Connect, context: Context, charges: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(Scope.WRITE)
    document_id = insert_document(context, D.COMPLETED, [C] * QUOTA)
    with monkeypatch.context() as patch:
        patch.setattr(context.db, "patience_s", 0)
        patch.setattr(service, "document_view", _lost)
        problem(client.post(f"{DOCUMENTS}/{document_id}/retry"), 503, "unavailable")
    assert charges == [QUOTA, -QUOTA]
    assert client.post(f"{DOCUMENTS}/{document_id}/retry").status_code == 202, "the pages are available again"


COMMANDS: dict[str, tuple[Callable[..., Any], DocumentStatus]] = {
    "cancel": (service.cancel, D.PROCESSING),
    "pause": (service.pause, D.PROCESSING),
    "resume": (service.resume, D.PAUSED),
    "retry": (service.retry, D.COMPLETED),
    "retry_failed": (service.retry_failed, D.PARTIAL_FAILED),
    "retry_page": (lambda context, document_id: service.retry_page(context, document_id, 1), D.COMPLETED),
    "remerge": (service.remerge, D.COMPLETED),
    "remove": (service.remove, D.COMPLETED),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_whose_commit_had_no_answer_reports_success(
    context: Context, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    command, status = COMMANDS[name]
    pages = [C, F] if status is D.PARTIAL_FAILED else [C, C]
    once, twice = (insert_document(context, status, pages) for _ in range(2))
    expected = command(context, once)
    lose_answers(monkeypatch, context.db)
    repeated = command(context, twice)
    if expected is not None:
        assert (repeated.status, repeated.completed_count) == (expected.status, expected.completed_count)


def test_retrying_an_invalid_page_costs_nothing(connect: Connect, context: Context, charges: list[int]) -> None:
    client = connect(Scope.WRITE)
    document_id = insert_document(context, D.PARTIAL_FAILED, [C, F])
    with context.db.transaction() as session:
        session.execute(PAGES.update().where(PAGES.c.page == 1).values(status=PageStatus.PENDING))
    for page, status in ((1, 409), (7, 404)):
        assert client.post(f"{DOCUMENTS}/{document_id}/pages/{page}/retry").status_code == status
    assert charges == []
    assert client.post(f"{DOCUMENTS}/{document_id}/pages/2/retry").status_code == 202
    assert charges == [1]
