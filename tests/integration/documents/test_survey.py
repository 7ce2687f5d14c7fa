"""The survey of the whole document by the split stage, and its use for pages."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.claims import Owner
from pipeline.engine.errors import UnitError, UserError
from pipeline.flows.documents import files, submission
from pipeline.flows.documents.flow import FLOW
from pipeline.flows.documents.plan import CPU
from pipeline.flows.documents.states import DocumentStatus
from pipeline.flows.documents.submission import Options
from pipeline.flows.documents.work import document as stage
from pipeline.flows.documents.work import split
from pipeline.flows.documents.work.page_lane import PageLane
from pipeline.interfaces.http.errors import status_of
from pipeline.providers.local import LocalConverter
from pipeline.reading.pdf import inspection
from pipeline.settings import LOCAL
from pipeline.storage.context import Context
from tests.support.documents import document, pages
from tests.support.samples import Sheet, pdf_bytes, shown, shown_lines

OWNER = Owner("w1", "request:0")


def submit(context: Context, folder: Path, count: int = 4) -> str:
    """Pages with a running head above text of their own."""
    text = [f"Line {n} of the text goes on and on until its end." for n in range(20)]
    sheets = [
        Sheet(shown("The Running Head", 72, 770) + shown_lines([f"Page {n} begins here.", *text])) for n in range(count)
    ]
    (folder / "book.pdf").write_bytes(pdf_bytes(sheets))
    return submission.submit(context, folder / "book.pdf", Options()).id


def texts(context: Context, document_id: str) -> list[str]:
    while PageLane(context, document_id, CPU, [LOCAL], OWNER).run(quantum_s=60).requeue:
        pass  # the submission's message waits in the queue, so a lane yields after each page
    return [page.content for page in pages(context, document_id)]


def test_pages_know_what_their_document_repeats(context: Context, tmp_path: Path) -> None:
    document_id = submit(context, tmp_path)
    assert split.split_document(context, document_id, OWNER)
    survey = json.loads(files.survey_path(context.settings, document_id).read_text())
    assert survey["pages"] == 4
    for number, text in enumerate(texts(context, document_id)):
        assert text.startswith(f"Page {number} begins here.")


def test_without_its_survey_a_page_is_converted_too(context: Context, tmp_path: Path) -> None:
    document_id = submit(context, tmp_path)
    assert split.split_document(context, document_id, OWNER)
    files.survey_path(context.settings, document_id).unlink()
    assert all("begins here." in text for text in texts(context, document_id))


def test_a_split_that_lost_its_worker_repeats_the_survey(context: Context, tmp_path: Path) -> None:
    document_id = submit(context, tmp_path)
    assert stage.claim(context, stage.SPLIT, document_id, Owner("dead", "r:0"))
    assert FLOW.free_lost(context, {"dead"}) == 1
    assert split.split_document(context, document_id, OWNER)
    assert document(context, document_id).status == DocumentStatus.PROCESSING
    assert json.loads(files.survey_path(context.settings, document_id).read_text())["pages"] == 4


def test_the_survey_is_deleted_with_its_document(context: Context, tmp_path: Path) -> None:
    document_id = submit(context, tmp_path)
    assert split.split_document(context, document_id, OWNER)
    files.remove_all(context.settings, document_id)
    assert not files.survey_path(context.settings, document_id).exists()


def test_a_document_is_read_later_while_no_reading_process_can_start(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context.settings.documents.backoff_s = [0.0, 0.0]
    document_id = submit(context, tmp_path)
    refusals = ["no_reader", "reader_killed"]
    inspect = inspection.inspect

    def busy(*args: Any) -> Any:
        if refusals:
            error = UserError("nobody reads now", code=refusals.pop())
            assert status_of(error) == 503
            raise error
        return inspect(*args)

    monkeypatch.setattr(inspection, "inspect", busy)
    waits = [split.split_document(context, document_id, OWNER) for _ in range(3)]
    assert waits == [False, False, True]
    assert document(context, document_id).status == DocumentStatus.PROCESSING
    assert refusals == []


def test_a_survey_whose_process_is_killed_is_repeated(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context.settings.documents.backoff_s = [0.0, 0.0]
    document_id = submit(context, tmp_path)
    killed = [UnitError("it was killed", code="reader_killed"), UnitError("it was killed", code="reader_killed")]
    survey = LocalConverter.survey

    def troubled(self: LocalConverter, *args: Any) -> str:
        if killed:
            raise killed.pop()
        return survey(self, *args)

    monkeypatch.setattr(LocalConverter, "survey", troubled)
    waits = [split.split_document(context, document_id, OWNER) for _ in range(3)]
    assert waits == [False, False, True]
    assert json.loads(files.survey_path(context.settings, document_id).read_text())["pages"] == 4
