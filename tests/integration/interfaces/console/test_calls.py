"""The screen of AI calls: charts, totals, the list, and one call in full."""

from datetime import timedelta

from sqlalchemy import insert
from starlette.testclient import TestClient

from pipeline.providers.calls import CALLS
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.integration.interfaces.api.conftest import Connect
from tests.support.calls import call_row
from tests.support.documents import insert_document

PAGE = {"accept": "text/html"}
CALLS_AT = "/console/calls"
HOSTILE = "<img src=x onerror=alert(1)>"


def make(context: Context, count: int = 1, **values: object) -> None:
    now = context.db.now()
    rows = [call_row("fake", now - timedelta(minutes=number), **values) for number in range(1, count + 1)]
    context.db.run(lambda session: session.execute(insert(CALLS), rows))


def test_without_calls_the_page_says_when_calls_are_made(api: TestClient) -> None:
    answer = api.get(CALLS_AT, headers=PAGE)
    assert answer.status_code == 200
    assert "No calls yet" in answer.text
    assert "<svg" not in answer.text


def test_calls_are_drawn_summed_up_by_model_and_listed(context: Context, api: TestClient) -> None:
    make(context, 3, latency_ms=1200, cost=0.5, model="large", input_tokens=1500)
    make(context, status="rate_limited", error=f"429 {HOSTILE}", model="large")
    text = api.get(CALLS_AT, headers=PAGE).text
    for words in (
        "4, 25.0 % failed",
        "$1.50",
        "4,500 in",
        "rate limited",
        "Calls over time",
        "/console/documents/doc?page=1",
    ):
        assert words in text, words
    assert HOSTILE not in text
    assert "&lt;img" in text
    assert text.count('id="call-') == 4 + len(("figures", "list"))


def test_filters_come_from_the_query_and_empty_form_fields_are_ignored(context: Context, api: TestClient) -> None:
    make(context, 2, model="small")
    make(context, status="permanent", model="large", flow="music", scope_id="7")
    empty = {"flow": "", "provider": "", "model": "", "status": "", "scope_id": ""}
    assert api.get(CALLS_AT, params=empty, headers=PAGE).text.count('<tr id="call-') == 3
    assert api.get(CALLS_AT, params={"status": "failed"}, headers=PAGE).text.count('<tr id="call-') == 1
    filtered = api.get(CALLS_AT, params={"model": "small", "span": "month"}, headers=PAGE).text
    assert filtered.count('<tr id="call-') == 2
    assert "model=large" not in filtered.partition("<table")[2].partition("</table>")[0]
    none = api.get(CALLS_AT, params={"model": "none such"}, headers=PAGE).text
    assert "No call matches" in none
    for wrong in ({"flow": "fishing"}, {"span": "age"}, {"status": "bad"}, {"scope_id": "a'b"}, {"colour": "red"}):
        assert api.get(CALLS_AT, params=wrong, headers=PAGE).status_code == 422


def test_pages_follow_one_another(context: Context, api: TestClient) -> None:
    make(context, 60)
    first = api.get(CALLS_AT, headers=PAGE).text
    assert first.count('<tr id="call-') == 50
    after = first.partition("cursor=")[2].partition('"')[0]
    second = api.get(f"{CALLS_AT}?cursor={after}", headers=PAGE).text
    assert second.count('<tr id="call-') == 10
    assert "hx-sse:connect" in first
    assert "hx-sse:connect" not in second, "older calls do not change"


def test_only_administrators_see_a_models_answer(context: Context, connect: Connect) -> None:
    make(context, preview=f"the secret answer {HOSTILE}", error=None)
    with context.db.read() as session:
        call_id = session.execute(CALLS.select()).one().id
    for scope, visible in ((Scope.READ, False), (Scope.WRITE, False), (Scope.ADMIN, True)):
        text = connect(scope).get(f"{CALLS_AT}/{call_id}", headers=PAGE).text
        assert ("the secret answer" in text) is visible
        assert HOSTILE not in text
        assert "the secret answer" not in connect(scope).get(CALLS_AT, headers=PAGE).text


def test_a_call_for_a_search_leads_nowhere(context: Context, api: TestClient) -> None:
    make(context, flow="music", scope_id="search", unit="0")
    assert "/console/music/runs" not in api.get(CALLS_AT, headers=PAGE).text


def test_an_unknown_call_has_an_error_page(api: TestClient) -> None:
    answer = api.get(f"{CALLS_AT}/17", headers=PAGE)
    assert answer.status_code == 404
    assert "here is no call 17" in answer.text


def test_a_call_names_the_file_of_its_document(context: Context, api: TestClient) -> None:
    document = insert_document(context, filename=f"{HOSTILE}.pdf")
    make(context, 2, scope_id=document)
    listed = api.get(CALLS_AT, headers=PAGE).text
    assert listed.count("&lt;img src=x onerror=alert(1)&gt;.pdf, page 1") == 2
    call = listed.partition('<tr id="call-')[2].partition('"')[0]
    assert "&lt;img src=x onerror=alert(1)&gt;.pdf, 1" in api.get(f"{CALLS_AT}/{call}", headers=PAGE).text
    assert HOSTILE not in listed
