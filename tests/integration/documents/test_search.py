"""A search finds pages after their document is merged, until it is deleted."""

from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import func, select, table, update
from sqlalchemy.orm import Session

from pipeline.engine.claims import Owner
from pipeline.engine.errors import UserError
from pipeline.flows.documents import search, service
from pipeline.flows.documents.catalog import Filter
from pipeline.flows.documents.flow import FLOW
from pipeline.flows.documents.models import DOCUMENTS, PAGES
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.views import Hits
from pipeline.flows.documents.work import text_index
from pipeline.flows.documents.work.merge import merge_document
from pipeline.reading.export import markdown
from pipeline.storage.context import Context
from tests.support.documents import insert_document

pytestmark = pytest.mark.both_databases

TEXTS = {
    1: "# Pumps\n\nThe filter of the pump is changed in March.",
    2: "# 设备\n\n数据库的备份每天进行。",
    3: "Nothing but a colophon.",
}
C, F = PageStatus.COMPLETED, PageStatus.FAILED


def merged(context: Context, texts: dict[int, str] = TEXTS, **values: Any) -> str:
    """A merged document with these texts."""
    document_id = insert_document(context, DocumentStatus.READY_TO_MERGE, [C] * len(texts), **values)
    write(context, document_id, texts)
    assert merge_document(context, document_id, Owner("w:1:a", "m1"))
    return document_id


def write(context: Context, document_id: str, texts: dict[int, str]) -> None:
    with context.db.transaction() as session:
        for number, text in texts.items():
            this_page = (PAGES.c.document_id == document_id, PAGES.c.page == number)
            session.execute(update(PAGES).where(*this_page).values(content=text, page_source=number + 10))


def find(context: Context, words: str, which: Filter | None = None, **more: Any) -> Hits:
    return search.search(context, words, which or Filter(), **more)


def places(result: Hits) -> list[tuple[str, int]]:
    return [(hit.document_id, hit.page) for hit in result.hits]


def indexed(context: Context) -> int:
    with context.db.read() as session:
        return int(session.execute(select(func.count()).select_from(table("page_fts"))).scalar_one())


def test_pages_are_found_with_page_and_passage(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_index, "_PORTION", 2)
    manual = merged(context, filename="manual.pdf")
    assert find(context, "filter").unindexed == 1
    assert text_index.index(context, manual) == 3
    assert text_index.index(context, manual) == 0, "indexing is done"
    result = find(context, "pump march")
    assert (places(result), result.any_word, result.unindexed) == ([(manual, 1)], False, 0)
    assert (result.hits[0].filename, result.hits[0].page_source) == ("manual.pdf", 11)
    assert "filter of the pump is changed" in result.hits[0].passage
    assert places(find(context, "数据库")) == [(manual, 2)]
    assert places(find(context, "coloph")) == [(manual, 3)], "the beginning of a word"
    assert places(find(context, "manual")) == [(manual, 1)], "a document is found by its name, at its first page"
    loose = find(context, "filter helicopter")
    assert (places(loose), loose.any_word) == ([(manual, 1)], True)
    assert find(context, "helicopter").hits == []

    other = merged(context, filename="other.pdf")
    assert FLOW.catch_up(context) == 3
    assert {document for document, _ in places(find(context, "filter"))} == {manual, other}
    assert places(find(context, "filter", document_id=other)) == [(other, 1)]
    assert places(find(context, "filter", Filter(name="MANUAL"))) == [(manual, 1)]
    with pytest.raises(UserError, match="say what to look for"):
        find(context, " ")


def test_passages_are_plain_text_around_most_of_the_words(context: Context) -> None:
    filler = "Nothing of note here. " * 40
    page = (
        f"# Invoice\n\n{filler}\n\n## **Totals** of [March](http://x)\n\n"
        "<table>\n<tr><th>Invoice</th><th>Sum &amp; tax</th></tr>\n"
        f"<tr><td>4711</td><td>12,00</td></tr>\n</table>\n\n| a | b |\n| --- | --- |\n| Straße | 2 |\n\n{filler}"
    )
    merged(context, {1: page, 2: "# 设备\n\n数据库的备份每天进行。"})
    FLOW.catch_up(context)
    hit = find(context, "invoice marc").hits[0]
    assert "note here. Totals of March Invoice Sum & tax 4711 12,00 a b Straße 2 Nothing of" in hit.passage
    assert [hit.passage[begin:end] for begin, end in hit.spots] == ["March", "Invoice"]
    street = find(context, "STRASSE").hits[0]
    assert [street.passage[begin:end] for begin, end in street.spots] == ["Straße"]
    assert (hit.passage[0], hit.passage[-1]) == ("…", "…")
    assert set(hit.passage.strip("…").split()) <= set(markdown.plain_text(page).split()), "no word is cut"
    (chinese,) = find(context, "备份").hits
    assert (chinese.passage, chinese.spots) == ("设备 数据库的备份每天进行。", [(7, 9)])


def test_index_follows_the_texts_and_drops_deleted_ones(context: Context) -> None:
    document = merged(context)
    FLOW.catch_up(context)
    service.remerge(context, document)
    write(context, document, {3: "An index of tables."})
    with context.db.transaction() as session:
        second_page = (PAGES.c.document_id == document, PAGES.c.page == 2)
        session.execute(update(PAGES).where(*second_page).values(status=F, content=""))
        session.execute(update(DOCUMENTS).values(completed_count=2, failed_count=1, allow_partial=True))
    assert places(find(context, "colophon")) == [(document, 3)], "the old text, until it is merged"
    assert merge_document(context, document, Owner("w:1:a", "m2"))
    assert text_index.index(context, document) == 3
    assert (places(find(context, "colophon")), places(find(context, "tables"))) == ([], [(document, 3)])
    assert find(context, "数据库").hits == []
    assert indexed(context) == 2
    service.retry(context, document)
    assert indexed(context) == 0, "the pages are deleted, and new rows reuse their numbers"
    rebuilt = merged(context)
    FLOW.catch_up(context)
    assert indexed(context) == 3
    service.remove(context, rebuilt)
    assert indexed(context) == 0


def test_a_document_merged_during_its_indexing_is_reindexed(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_index, "_PORTION", 1)
    document = merged(context)
    portion = text_index._portion

    def interrupted(session: Session, document_id: str, merged_at: datetime, after: int) -> list[Any]:
        if after == 1:
            session.execute(update(DOCUMENTS).values(finished_at=context.db.now()))
        return portion(session, document_id, merged_at, after)

    monkeypatch.setattr(text_index, "_portion", interrupted)
    assert text_index.index(context, document) == 1
    monkeypatch.setattr(text_index, "_portion", portion)
    assert find(context, "filter").unindexed == 1
    assert FLOW.catch_up(context) == 3
    assert find(context, "filter").unindexed == 0


def test_pages_leave_the_index_in_portions_and_return_if_their_document_stays(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_index, "_PORTION", 2)
    document_id = merged(context)
    text_index.index(context, document_id)
    assert indexed(context) == 3
    text_index.forget_ahead(context, document_id)  # and the deleting process was killed
    assert (indexed(context), find(context, "pump").unindexed) == (0, 1)
    assert text_index.catch_up(context) == 3
    text_index.forget_ahead(context, document_id)
    service.remove(context, document_id)
    text_index.forget_ahead(context, document_id)  # harmless for a deleted document
    assert (indexed(context), find(context, "pump").unindexed) == (0, 0)
