"""Doubtful pages are marked in their rows, in the list and in the manifest."""

import json
from pathlib import Path

import pytest

from pipeline.engine.claims import Owner
from pipeline.flows.documents import queries, service
from pipeline.flows.documents.states import PageStatus
from pipeline.flows.documents.work import merge
from pipeline.flows.documents.work.page import Attempt
from pipeline.providers.protocols import Answer
from pipeline.storage.context import Context
from tests.support.documents import Worker, insert_document


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


def converted(context: Context, *texts: tuple[str, float | None]) -> str:
    """A merged document with these pages: text and confidence of recognition."""
    document_id = insert_document(context, pages=[PageStatus.PENDING] * len(texts))
    settle(context, document_id, *texts)
    return document_id


def settle(context: Context, document_id: str, *texts: tuple[str, float | None]) -> None:
    worker = Worker(context, document_id)
    for unit, (text, sure) in zip(worker.claim(len(texts)), texts, strict=True):
        layout = {"width": 1, "height": 1, "unit": "px", "blocks": [], **({} if sure is None else {"confidence": sure})}
        worker.settle(Attempt(unit, Answer(text, "local", layout=layout)))
    assert merge.merge_document(context, document_id, Owner("m", "1"))


def test_doubtful_pages_are_counted_and_listed(context: Context) -> None:
    document_id = converted(
        context, ("sure", 0.97), ("a guess", 0.6), ("a text layer", None), ("an [illegible] word", None)
    )
    view = queries.document(context, document_id)
    assert view.doubtful_count == 2
    assert [(page.page, page.confidence) for page in queries.pages(context, document_id, doubtful=True)] == [
        (2, 0.6),
        (4, None),
    ]
    manifest = json.loads((Path(str(view.merged_path)).with_suffix(".manifest.json")).read_text())
    assert (manifest["totals"]["doubtful"], manifest["document"]["doubtful_count"]) == (2, 2)
    assert [(page["confidence"], page["doubtful"]) for page in manifest["pages"][:2]] == [(0.97, False), (0.6, True)]
    assert [page["uncertain"] for page in manifest["pages"][:2]] == [False, False]
    assert queries.layout_json(context, document_id)["pages"][1]["confidence"] == 0.6


def test_a_page_of_mostly_uncertain_words_says_so(context: Context) -> None:
    document_id = insert_document(context, pages=[PageStatus.PENDING] * 2)
    worker = Worker(context, document_id)
    for unit, share in zip(worker.claim(2), (0.8, 0.1), strict=True):
        layout = {"width": 1, "height": 1, "unit": "px", "blocks": [], "confidence": 0.95, "uncertain": share}
        worker.settle(Attempt(unit, Answer("words", "local", layout=layout)))
    assert merge.merge_document(context, document_id, Owner("m", "1"))

    view = queries.document(context, document_id)
    manifest = json.loads((Path(str(view.merged_path)).with_suffix(".manifest.json")).read_text())
    assert [(page["uncertain"], page["uncertain_share"], page["doubtful"]) for page in manifest["pages"]] == [
        (True, 0.8, True),
        (False, 0.1, False),
    ]
    assert manifest["totals"]["uncertain"] == 1
    service.retry_page(context, document_id, 1)
    settle(context, document_id, ("by a model", None))
    assert queries.pages(context, document_id)[0].uncertain_share is None


def test_a_page_of_nonsense_words_is_doubtful_despite_high_confidence(context: Context) -> None:
    document_id = insert_document(context, pages=[PageStatus.PENDING] * 2)
    worker = Worker(context, document_id)
    for unit, words in zip(worker.claim(2), (["BOBtha5782Harrison", "BlBesitoss"], ["Microso4"]), strict=True):
        layout = {"width": 1, "height": 1, "unit": "px", "blocks": [], "confidence": 0.98, "garbled": words}
        worker.settle(Attempt(unit, Answer("words", "local", layout=layout)))
    assert merge.merge_document(context, document_id, Owner("m", "1"))

    assert [page.page for page in queries.pages(context, document_id, doubtful=True)] == [1]
    assert queries.layout_json(context, document_id)["pages"][1]["garbled"] == ["Microso4"]


def test_a_better_reading_ends_the_doubt(context: Context) -> None:
    document_id = converted(context, ("a guess", 0.6), ("sure", 0.99))
    service.retry_page(context, document_id, 1)
    settle(context, document_id, ("by a model", None))
    assert queries.document(context, document_id).doubtful_count == 0
    assert queries.pages(context, document_id, doubtful=True) == []
