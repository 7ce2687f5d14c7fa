"""Doubtful pages of a document are sent to another provider from every interface."""

import pytest
from sqlalchemy import update
from starlette.testclient import TestClient

from pipeline.engine.accounts import Part
from pipeline.flows.documents import service
from pipeline.flows.documents.models import PAGES
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.interfaces.compatibility.docling.options import ConvertOptions
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.integration.interfaces.api.conftest import Connect
from tests.integration.interfaces.api.test_skeleton import DOCUMENTS, problem
from tests.support.documents import document, insert_document, set_row

C, F = PageStatus.COMPLETED, PageStatus.FAILED
QUOTA = 3


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {
        "PENSTOCK_API__PAGES_PER_DAY": str(QUOTA),
        "PENSTOCK_PROVIDERS__BIG__BASE_URL": "http://127.0.0.1:9/v1",
        "PENSTOCK_PROVIDERS__BIG__MODEL": "m-1",
        "PENSTOCK_PROVIDERS__BIG__PRICES": '{"*": {"input": 1000, "output": 0}}',
    }


def finished(context: Context) -> str:
    """A document with two doubtful pages, one sure and one failed page."""
    document_id = insert_document(context, DocumentStatus.PARTIAL_FAILED, [C, C, C, F])
    doubtful = (PAGES.c.document_id == document_id, PAGES.c.page <= 2)
    with context.db.transaction() as session:
        session.execute(update(PAGES).where(*doubtful).values(doubtful=True, confidence=0.5))
    return document_id


def states(client: TestClient, document_id: str) -> list[str | None]:
    pages = client.get(f"{DOCUMENTS}/{document_id}/pages").json()["items"]
    return [page["escalation"] and page["escalation"]["state"] for page in pages]


def test_the_api_sends_doubtful_and_failed_pages_within_budget_and_quota(connect: Connect, context: Context) -> None:
    client = connect(Scope.WRITE)
    document_id = finished(context)
    url = f"{DOCUMENTS}/{document_id}/escalate"
    problem(client.post(url, json={"provider": "nobody"}), 422, "unknown_provider")
    problem(client.post(url), 422, "usage")
    refused = client.post(url, json={"provider": "big", "budget": "2,50"})
    assert refused.status_code == 422
    assert "'2,50' is not a budget: write money, such as 2.00, or pages, such as 20p" in refused.text
    answer = client.post(url, json={"provider": "big", "budget": "2p"})
    assert (answer.status_code, answer.json()["escalated_pages"], answer.json()["unpaid_pages"]) == (202, 2, 1)
    assert states(client, document_id) == ["open", "open", None, "unpaid"]
    page = client.get(f"{DOCUMENTS}/{document_id}/pages/1").json()
    assert page["escalation"]["reason"] == "recognition is 50% sure"
    assert page["markdown"] == "text of page 1"
    other = finished(context)
    assert client.post(f"{DOCUMENTS}/{other}/escalate", json={"provider": "big"}).status_code == 429
    assert (document(context, other).escalate, states(client, other)) == ("", [None] * 4)


def test_the_console_sends_them_and_shows_each_page_s_outcome(connect: Connect, context: Context) -> None:
    client = connect(Scope.WRITE)
    document_id = finished(context)
    console = f"/console/documents/{document_id}"
    assert "<option>big</option>" in client.get(console).text
    answer = client.post(f"{console}/escalate", data={"provider": "big", "budget": "1p"}, follow_redirects=False)
    assert answer.status_code == 303
    shown = client.get(console).text
    assert "On its way to big" in shown
    assert "1 page to big" in shown
    assert "budget spent before 2 pages" in shown
    assert "Budget spent before it went to big" in client.get(f"{console}?page=2").text


def test_a_caller_s_account_reserves_no_more_than_the_budget(context: Context) -> None:
    document_id = insert_document(context, escalate="big", budget="3.0", budget_cost=3.0)
    row = document(context, document_id)
    with context.db.read() as tx:
        each = service.page_cost(tx, "big", "")
        assert service.escalation_parts(tx, row, 10) == [Part(10, 0.3)]
        assert service.escalation_parts(tx, row, 1) == [Part(1, each)]
        set_row(context, document_id, budget_cost=None, budget_pages=4)
        assert service.escalation_parts(tx, document(context, document_id), 10) == [Part(4, each)]


def test_options_of_docling_s_api_escalate() -> None:
    options = ConvertOptions(escalate="big", budget="20p").submission("local")
    assert (options.escalate, options.budget) == ("big", "20p")
