"""The screen of documents: the list, searches, files from a plain form, and bulk actions."""

import re
import zipfile
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.testclient import TestClient

from pipeline.flows.documents import service
from pipeline.flows.documents.flow import FLOW
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.interfaces.console.screens import document_bulk, documents
from pipeline.interfaces.console.screens.documents import Watched, fragments
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.integration.interfaces.api.conftest import Connect
from tests.support.documents import document, insert_document
from tests.support.samples import text_pdf

PAGE = {"accept": "text/html"}
D, P = DocumentStatus, PageStatus
SCREEN = "/console/documents"
HOSTILE = "<img src=x onerror=alert(1)>\"'{{7*7}}.pdf"


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show two rows on a page, and act on two documents per request."""
    monkeypatch.setattr(documents, "ROWS", 2)
    monkeypatch.setattr(document_bulk, "AT_ONCE", 2)


def shown(api: TestClient, address: str = SCREEN) -> str:
    answer = api.get(address, headers=PAGE)
    assert answer.status_code == 200, answer.text
    return answer.text


def names(page: str) -> list[str]:
    return re.findall(r'class="name"><a [^>]*>([^<]*)</a>', page)


def link(page: str, words: str) -> str:
    """Return the target of the link with these words."""
    match = re.search(rf'<a [^>]*href="([^"]*)"[^>]*>{re.escape(words)}', page)
    assert match, f"no link “{words}”"
    return unescape(match[1])


def test_an_empty_list_says_what_to_do_first(api: TestClient) -> None:
    page = shown(api)
    assert "No documents yet" in page
    assert "penstock convert" in page
    assert 'enctype="multipart/form-data"' in page


def test_a_row_shows_the_state_of_a_document_and_its_reason(api: TestClient, context: Context) -> None:
    insert_document(context, D.COMPLETED, [P.COMPLETED, P.COMPLETED], filename="done.pdf", cost=0.42)
    insert_document(context, D.PARTIAL_FAILED, [P.COMPLETED, P.FAILED], filename="partly.pdf", model_name="gpt-4o")
    insert_document(context, D.PROCESSING, filename="waits.pdf")
    paused = insert_document(context, D.PROCESSING, filename="paused.pdf")
    service.pause(context, paused, "scanner-room")
    page = shown(api)
    for words in (
        "1 page failed",
        "page 2: it failed",
        "local · gpt-4o",
        "No worker is running",
        "by scanner-room",
        "$0.42",
        "2 / 2",
        "All <span>4</span>",
        "Needs you <span>1</span>",
    ):
        assert words in page, words
    assert names(shown(api, f"{SCREEN}?state=attention")) == ["partly.pdf"]
    assert names(shown(api, f"{SCREEN}?q=DONE")) == ["done.pdf"]
    assert "No document matches" in shown(api, f"{SCREEN}?q=nothing&state=paused")
    assert names(shown(api, f"{SCREEN}?since=hour&state=paused")) == ["paused.pdf"]
    assert api.get(f"{SCREEN}?state=odd", headers=PAGE).status_code == 422
    assert api.get(f"{SCREEN}?after=odd", headers=PAGE).status_code == 400


@pytest.mark.usefixtures("small_pages")
def test_pages_of_the_list_go_both_ways_and_keep_the_filter(api: TestClient, context: Context) -> None:
    now = context.db.now()
    for n in range(5):
        insert_document(context, D.COMPLETED, [], filename=f"a{n}.pdf", created_at=now - timedelta(minutes=n))
    insert_document(context, D.COMPLETED, [], filename="b.pdf", created_at=now)
    first = shown(api, f"{SCREEN}?q=a&state=done")
    assert names(first) == ["a0.pdf", "a1.pdf"]
    assert "Newer" not in first
    second = shown(api, link(first, "Older"))
    assert names(second) == ["a2.pdf", "a3.pdf"]
    third = shown(api, link(second, "Older"))
    assert names(third) == ["a4.pdf"]
    assert ">Older" not in third
    back = shown(api, link(third, "Newer"))
    assert names(back) == ["a2.pdf", "a3.pdf"]
    top = shown(api, link(back, "Newer"))
    assert names(top) == ["a0.pdf", "a1.pdf"]
    assert ">Newer" not in top
    assert names(shown(api, link(second, "Newest"))) == ["a0.pdf", "a1.pdf"]


def test_search_hits_of_texts_link_to_the_page(api: TestClient, context: Context) -> None:
    merged: dict[str, Any] = {"finished_at": context.db.now(), "unindexed": True, "filename": "book.pdf"}
    document_id = insert_document(context, D.COMPLETED, [P.COMPLETED] * 8, **merged)
    assert "The text of 1 document is not indexed yet" in shown(api, f"{SCREEN}?q=text")
    FLOW.catch_up(context)
    page = shown(api, f"{SCREEN}?q=text")
    assert f'href="/console/documents/{document_id}?page=' in page
    assert "<mark>text</mark>" in page
    assert "No page has all the words" in shown(api, f"{SCREEN}?q=text+zebra")
    everything = shown(api, link(page, "More pages with these words"))
    assert everything.count("<mark>") == 8
    assert not names(everything)


def test_hostile_names_and_errors_are_escaped(api: TestClient, context: Context) -> None:
    insert_document(context, D.FAILED, [], filename=HOSTILE, error="<script>alert(1)</script>", model_name="<b>m</b>")
    for page in (shown(api), shown(api, f"{SCREEN}?q={HOSTILE}"), shown(api, f"{SCREEN}/actions/delete?q=%3Cimg")):
        assert "<img" not in page
        assert "<script>" not in page
        assert "49.pdf" not in page
    assert "&lt;script&gt;alert(1)" in shown(api)


def test_files_are_sent_by_a_plain_form(api: TestClient, context: Context, tmp_path: Path) -> None:
    pdf = text_pdf(tmp_path / "report.pdf", ["a text"]).read_bytes()
    files = [("file", ("a.pdf", pdf)), ("file", ("b.bin", b"hello"))]
    answer = api.post(
        SCREEN, files=files, data={"provider": "", "allow_partial": "true", "use_cache": "false"}, headers=PAGE
    )
    assert answer.url.path == SCREEN
    assert "1 file will be converted. b.bin: " in unescape(answer.text)
    assert names(answer.text) == ["a.pdf"]
    (row,) = [document(context, key) for key in re.findall(r'id="d-([0-9a-f]+)"', answer.text)]
    assert (row.allow_partial, row.use_cache) == (True, False)
    assert api.post(SCREEN, files=[("file", ("", b""))], headers=PAGE).status_code == 422
    refused = api.post(SCREEN, files=[("file", ("b.bin", b"hello"))], headers=PAGE)
    assert refused.status_code == 415
    assert "The request failed" in refused.text


def test_a_plain_form_takes_archives(api: TestClient, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "pile.zip", "w") as written:
        written.write(text_pdf(tmp_path / "report.pdf", ["a text"]), "2026/report.pdf")
        written.writestr("program.exe", b"MZ" + bytes(50))
    pile = (tmp_path / "pile.zip").read_bytes()
    answer = api.post(SCREEN, files=[("file", ("pile.zip", pile))], headers=PAGE)
    assert "1 file will be converted. pile.zip/program.exe: not of a type" in unescape(answer.text)
    assert names(answer.text) == ["report.pdf"]


def test_a_bulk_action_first_names_the_documents_that_it_changes(api: TestClient, context: Context) -> None:
    ids = [insert_document(context, filename=f"w{n}.pdf") for n in range(7)]
    other = insert_document(context, D.COMPLETED, [], filename="w-done.pdf")
    page = shown(api, f"{SCREEN}/actions/pause?q=w")
    assert "Pause 7 documents?" in page
    assert "and 2 more" in page
    assert "state of 1 other document" in page
    assert {document(context, document_id).status for document_id in ids} == {D.PROCESSING}
    answer = api.post(f"{SCREEN}/actions/pause", data={"q": "w", "total": "7"}, headers=PAGE)
    assert "7 documents are paused." in answer.text
    assert parse_qs(urlsplit(str(answer.url)).query) == {"q": ["w"]}
    assert {document(context, document_id).status for document_id in ids} == {D.PAUSED}
    some = f"{SCREEN}/actions/cancel?id={ids[0]}&id={ids[1]}&id={other}"
    page = shown(api, some)
    assert "Cancel 2 documents?" in page
    assert page.count('name="id"') == 2
    answer = api.post(f"{SCREEN}/actions/cancel", data={"id": ids[:2]}, headers=PAGE)
    assert "2 documents are cancelled." in answer.text
    assert [document(context, document_id).status for document_id in ids[:3]] == [D.CANCELLED, D.CANCELLED, D.PAUSED]
    assert "nothing to do" in shown(api, f"{SCREEN}/actions/resume?q=nothing")
    assert api.get(f"{SCREEN}/actions/explode", headers=PAGE).status_code == 404


@pytest.mark.usefixtures("small_pages")
def test_many_documents_are_changed_in_portions(api: TestClient, context: Context) -> None:
    for n in range(5):
        insert_document(context, D.FAILED, [], filename=f"{n}.pdf")
    unchanged = insert_document(context, D.COMPLETED, [])
    form: dict[str, str] = {"state": "attention", "total": "5"}
    messages = []
    for _ in range(3):
        answer = api.post(f"{SCREEN}/actions/delete", data=form, headers={**PAGE, "hx-request": "true"})
        messages += re.findall(r"(\d+ of \d+) documents so far", answer.text)
        form = {name: unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', answer.text)}
    assert messages == ["2 of 5", "4 of 5"]
    assert answer.headers["hx-redirect"] == f"{SCREEN}?state=attention"
    assert "5%20documents%20are%20deleted." in answer.headers["set-cookie"]
    assert re.findall(r'id="d-([0-9a-f]+)"', shown(api)) == [unchanged]


def test_a_reader_sees_no_actions(connect: Connect, context: Context) -> None:
    insert_document(context)
    api = connect(Scope.READ)
    page = shown(api)
    assert "report.pdf" in page
    for word in ("Drop files", "that match", "/actions/"):
        assert word not in page, word
    assert api.get(f"{SCREEN}/actions/pause", headers=PAGE).status_code == 403
    assert api.post(SCREEN, files=[("file", ("a.pdf", b"x"))], headers=PAGE).status_code == 403


def test_shown_rows_follow_changes_and_new_ones_are_announced(api: TestClient, context: Context) -> None:
    moving = insert_document(context, D.PROCESSING)
    removed = insert_document(context, D.PROCESSING)
    page = shown(api)
    stream = re.search(r'hx-sse:connect="/console/live\?([^"]*)"', page)
    assert stream
    parameters = {name: values[0] for name, values in parse_qs(unescape(stream[1])).items() if name != "view"}
    watched = Watched.model_validate(parameters)
    service.cancel(context, moving)
    service.remove(context, removed)
    insert_document(context, D.COMPLETED, [], created_at=context.db.now() + timedelta(seconds=1))
    pushed = fragments(context, watched)
    assert set(pushed) == {f"d-{moving}", "counts", "fresh"}
    assert "cancelled" in pushed[f"d-{moving}"]
    assert "1 new document: show" in pushed["fresh"]
    assert "Done <span>1</span>" in pushed["counts"]
    assert api.get("/console/live?view=documents&rows=../x", headers=PAGE).status_code == 422
