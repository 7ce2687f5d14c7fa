"""The screen of one document: its pages, a page beside its text, its attempts, and its actions."""

import re
from collections.abc import Sequence
from html import unescape
from typing import Any

from sqlalchemy import insert, update
from starlette.testclient import TestClient

from pipeline.flows.documents.models import ATTEMPTS, DOCUMENTS, LAYOUTS, PAGES
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.interfaces.console.page_text import MOST_BLOCKS
from pipeline.interfaces.console.screens.document import AROUND, DocumentQuery, fragments
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.integration.interfaces.api.conftest import Connect
from tests.support.documents import attempts, document, insert_document, pages, set_row, write_output

D, P = DocumentStatus, PageStatus
C, F = PageStatus.COMPLETED, PageStatus.FAILED
HOSTILE = "<img src=x onerror=alert(1)>\"'{{7*7}}"
BLOCKS = [
    {"page": 1, "type": "heading", "text": "Pumps", "bbox": [72.0, 60.0, 200.0, 80.0], "level": 1},
    {"page": 1, "type": "paragraph", "text": "Check the <valve>.", "bbox": [72.0, 90.0, 500.0, 120.0]},
    {"page": 1, "type": "list_item", "text": "inner", "bbox": [90.0, 130.0, 300.0, 142.0], "marker": "-", "depth": 1},
]
TEXT = "# Pumps\n\nCheck the \\<valve>.\n\n    - inner"


def at(document_id: str, **query: Any) -> str:
    return f"/console/documents/{document_id}?" + "&".join(f"{name}={value}" for name, value in query.items())


def shown(api: TestClient, document_id: str, **query: Any) -> str:
    answer = api.get(at(document_id, **query), headers={"accept": "text/html"})
    assert answer.status_code == 200, answer.text
    return answer.text


def post(api: TestClient, document_id: str, action: str, **fields: Any) -> Any:
    return api.post(
        f"/console/documents/{document_id}/{action}",
        data=fields,
        follow_redirects=False,
        headers={"hx-request": "true"},
    )


def with_layout(
    context: Context, document_id: str, content: str = TEXT, blocks: Sequence[dict[str, Any]] = BLOCKS
) -> None:
    page_id = pages(context, document_id)[0].id
    layout = {"width": 612.0, "height": 792.0, "unit": "pt", "blocks": blocks}
    with context.db.transaction() as session:
        session.execute(update(PAGES).where(PAGES.c.id == page_id).values(content=content))
        session.execute(insert(LAYOUTS).values(page_id=page_id, data=layout))


def try_page(context: Context, document_id: str, text: str, **values: Any) -> int:
    row = {
        "document_id": document_id,
        "page": 1,
        "page_source": 1,
        "provider": "local",
        "model": "",
        "status": "completed",
        "text": text,
        "worker_id": "w",
        "created_at": context.db.now(),
        "latency_ms": 1200,
        **values,
    }
    with context.db.transaction() as session:
        session.execute(insert(ATTEMPTS).values(**row))
    return int(attempts(context, document_id)[-1].id)


def test_boxes_lie_on_the_picture_and_lead_to_their_sections(api: TestClient, context: Context) -> None:
    document_id = insert_document(context, D.COMPLETED, [C], filename=f"{HOSTILE}.pdf")
    with_layout(context, document_id)
    page = shown(api, document_id)
    assert " · local · no cost · added" in " ".join(page.split())
    assert 'viewBox="0 0 612.0 792.0"' in page
    assert re.search(r'<a href="#b1" id="box-b1" data-block="b1" class="paragraph" aria-label="paragraph: Check', page)
    assert '<rect x="72.0" y="90.0" width="428.0" height="30.0"/>' in page
    assert re.search(r'<section id="b1" data-block="b1"[^>]*><a class="to-box" href="#box-b1"', page)
    assert "<p>Check the &lt;valve&gt;.</p>" in page
    assert re.search(r'<section id="b2"[^>]*class="list_item depth-1">.*<ul>\n<li>inner</li>', page)
    assert f"/api/v1/documents/{document_id}/pages/1/picture?width=1000&amp;encoding=webp" in page
    assert "<img src=x" not in page
    assert "<h1>&lt;img src=x" in page


def test_searched_words_are_marked(api: TestClient, context: Context) -> None:
    document_id = insert_document(context, D.COMPLETED, [C])
    with_layout(context, document_id)
    page = shown(api, document_id, q="valve")
    assert "&lt;<mark>valve</mark>&gt;" in page
    assert 'class="paragraph found"' in page
    assert '<section id="b0" data-block="b0" tabindex="-1" class="heading">' in page
    assert "<mark>valve</mark>" in shown(api, document_id, q="valve", tab="markdown")


def test_a_text_without_places_is_reported(api: TestClient, context: Context) -> None:
    document_id = insert_document(context, D.COMPLETED, [C])
    assert "No boxes" in shown(api, document_id)
    with_layout(context, document_id, "another text")
    page = shown(api, document_id)
    assert "No boxes" in page
    assert "<svg viewBox" not in page


def test_a_page_of_an_office_file_shows_its_text_and_no_picture(api: TestClient, context: Context) -> None:
    document_id = insert_document(context, D.COMPLETED, [C], filename="letter.docx", type="docx")
    page = shown(api, document_id)
    assert "text of page 1" in page
    assert "No picture of this page: a docx file holds text." in page
    assert "/picture?" not in page
    assert "No boxes" not in page


def test_a_page_of_thousands_of_blocks_is_shown_as_one_text(api: TestClient, context: Context) -> None:
    document_id = insert_document(context, D.COMPLETED, [C])
    block, many = {**BLOCKS[1], "text": "a"}, MOST_BLOCKS + 1
    with_layout(context, document_id, "a\n\n" * many, [block] * many)
    page = shown(api, document_id)
    assert "No boxes" in page
    assert page.count("<p>a</p>") == many


def test_markup_of_models_does_nothing(api: TestClient, context: Context) -> None:
    document_id = insert_document(context, D.COMPLETED, [C], provider="openai")
    hostile = "<script>alert(1)</script>\n\n![words](http://evil/x.png) [x](javascript:alert(1)) <b onclick=alert(1)>"
    table = '<table><tr><td colspan="2" onclick="x()">cell<script>y()</script></td></tr></table>'
    with context.db.transaction() as session:
        session.execute(update(PAGES).values(content=f"{hostile}\n\n{table}\n\nH<sub>2</sub>O"))
    try_page(context, document_id, f"</pre><script>{HOSTILE}", error="<script>", provider="openai")
    page = shown(api, document_id)
    assert '<td colspan="2">cell</td>' in page
    assert "H<sub>2</sub>O" in page
    for tab in ("text", "markdown", "attempts"):
        page = shown(api, document_id, tab=tab)
        for danger in ("<script>alert", "<script>y", "<script><img", 'evil/x.png"', 'href="javascript', 'onclick="'):
            assert danger not in page, (tab, danger)


def test_a_long_document_shows_a_part_of_its_strip(api: TestClient, context: Context) -> None:
    document_id = insert_document(context, D.PROCESSING, [C] * 150 + [F, P.PENDING])

    def cells(page: str) -> list[int]:
        return [int(number) for number in re.findall(r'<li id="cell-(\d+)"', page)]

    assert cells(shown(api, document_id)) == list(range(1, AROUND + 1))
    page = shown(api, document_id, page=75)
    assert cells(page) == list(range(41, 101))
    assert re.findall(r'aria-current="page"[^>]*><img', page) == ['aria-current="page"><img']
    assert '<a class="more" href="/console/documents/' + document_id + '?page=40"' in page
    assert 'rel="next" data-key="j"' in page
    assert cells(shown(api, document_id, page=152)) == list(range(93, 153))
    assert cells(shown(api, document_id, page=999))[-1] == 152
    assert f'failed: <a href="/console/documents/{document_id}?page=151">151</a>' in shown(api, document_id)


def test_pages_show_their_state_and_its_reason(api: TestClient, context: Context) -> None:
    document_id = insert_document(context, D.PROCESSING, [C, F, P.PENDING, P.PROCESSING, P.RETRYING])
    assert "This page failed" in shown(api, document_id, page=2)
    assert "it failed" in shown(api, document_id, page=2)
    assert "This page is waiting" in shown(api, document_id, page=3)
    assert "No worker is running" in shown(api, insert_document(context, D.PROCESSING, [P.PENDING]))
    assert "This page is being converted" in shown(api, document_id, page=4)
    assert "Its previous text is below" in shown(api, document_id, page=5)
    assert "No pages yet" in shown(api, insert_document(context, D.PENDING, []))
    answer = api.get(at("0123456789abcdef"), headers={"accept": "text/html"})
    assert answer.status_code == 404
    assert "there is no document" in unescape(answer.text).lower()


def test_attempts_are_compared_and_one_is_promoted(api: TestClient, context: Context) -> None:
    document_id = insert_document(context, D.COMPLETED, [C])
    other = try_page(context, document_id, "text of page one", cost=0.0042, input_tokens=1400, output_tokens=300)
    lost = try_page(context, document_id, "", status="transient", error="the connection was lost", effective=False)
    same = try_page(context, document_id, "text of page 1")
    page = shown(api, document_id, tab="attempts")
    assert "<del>1</del>" in page
    assert "<ins>one</ins>" in page
    assert "Use this text" in page
    for words in ("1,400 + 300 tokens", "$0.0042", "the connection was lost", "It came too late", "current text"):
        assert words in page, words
    assert f"attempt={lost}" not in page
    assert f"Attempt {same} has the page" in shown(api, document_id, tab="attempts", attempt=same)
    promoted = post(api, document_id, f"pages/1/attempts/{other}/promote")
    assert "has the text of attempt" in promoted.text
    assert promoted.headers["hx-trigger"] == "changed"
    assert pages(context, document_id)[0].content == "text of page one"
    assert post(api, document_id, f"pages/1/attempts/{other}/promote").status_code == 409
    set_row(context, document_id, status=D.COMPLETED)
    assert post(api, document_id, f"pages/1/attempts/{lost}/promote").status_code == 404


def test_pages_are_retried_with_the_chosen_provider(api: TestClient, context: Context) -> None:
    document_id = insert_document(context, D.PARTIAL_FAILED, [C, F], provider="openai")
    page = shown(api, document_id)
    assert '<option value="local|">' in page
    assert post(api, document_id, "pages/1/retry", choice="nobody|").status_code == 422
    assert post(api, document_id, "pages/1/retry", choice="local|", colour="red").status_code == 422
    assert "Page 1 is being converted again by local" in post(api, document_id, "pages/1/retry", choice="local|").text
    assert (pages(context, document_id)[0].provider, pages(context, document_id)[0].status) == ("local", P.RETRYING)
    assert "1 page of report.pdf being converted again" in post(api, document_id, "retry-failed", choice="local|").text
    assert pages(context, document_id)[1].status == P.RETRYING
    assert "nothing to do" in post(api, document_id, "retry-failed").text
    cut_off = insert_document(context, D.PARTIAL_FAILED, [C, P.PENDING])
    assert "The missing pages of report.pdf are being converted" in post(api, cut_off, "retry-failed").text
    assert document(context, cut_off).status == D.PROCESSING
    refused = post(api, document_id, "retry")
    assert refused.status_code == 409
    assert "cannot retry" in refused.text
    done = insert_document(context, D.COMPLETED, [C])
    assert "is being converted again" in post(api, done, "retry", fresh="true").text
    assert document(context, done).status == D.PENDING


def test_actions_ask_first_and_name_what_they_change(api: TestClient, context: Context) -> None:
    document_id = insert_document(context, D.PROCESSING, [C, P.PENDING], filename='a "b".pdf')
    page = unescape(shown(api, document_id))
    assert "1 page will not be converted" in page
    assert 'Delete a "b".pdf? Its 2 pages, all their attempts' in page
    assert "is paused" in post(api, document_id, "pause").text
    page = shown(api, document_id)
    assert f'action="/console/documents/{document_id}/resume"' in page
    assert "continues" in post(api, document_id, "resume").text
    assert "is cancelled" in post(api, document_id, "cancel").text
    assert "Merge without 1 page" in shown(api, document_id)
    assert post(api, document_id, "remerge").status_code == 409
    assert "is being merged without 1 page" in post(api, document_id, "remerge", allow_partial="true").text
    deleted = post(api, document_id, "delete")
    assert deleted.headers["hx-redirect"] == "/console/documents"
    with context.db.read() as session:
        assert session.execute(DOCUMENTS.select()).all() == []


def test_readers_see_everything_and_change_nothing(connect: Connect, context: Context) -> None:
    document_id = insert_document(context, D.PARTIAL_FAILED, [C, F])
    set_row(context, document_id, merged_path=write_output(context, document_id))
    try_page(context, document_id, "another text")
    reader = connect(Scope.READ)
    for tab in ("text", "attempts"):
        page = shown(reader, document_id, tab=tab)
        assert f"/api/v1/documents/{document_id}/archive" in page
        assert 'method="post" action="/console/documents' not in page
    assert post(reader, document_id, "delete").status_code == 403
    assert '<input name="model"' not in shown(connect(Scope.WRITE), document_id)
    assert '<input name="model"' in shown(connect(Scope.ADMIN), document_id)


def test_pushed_fragments_are_the_same_for_all_callers(context: Context) -> None:
    document_id = insert_document(context, D.PARTIAL_FAILED, [C, F])
    before = fragments(context, DocumentQuery(id=document_id))
    assert list(before) == ["facts", "cell-1", "cell-2"]
    for name, html in before.items():
        assert re.match(rf'<\w+ [^>]*id="{name}"', html.strip()), html[:80]
        assert "<form" not in html
        assert "here" not in html
    assert "1 page failed" in before["facts"]
    with context.db.transaction() as session:
        session.execute(update(PAGES).where(PAGES.c.page == 2).values(status=P.RETRYING))
    after = fragments(context, DocumentQuery(id=document_id))
    assert before["cell-1"] == after["cell-1"]
    assert before["cell-2"] != after["cell-2"]
