"""Documents that exceed the limits of the reading process, through split and lanes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.engine.claims import Owner
from pipeline.engine.errors import UserError
from pipeline.flows.documents import service, submission
from pipeline.flows.documents.models import PAGES
from pipeline.flows.documents.plan import CPU
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.submission import Options
from pipeline.flows.documents.work import document as stage
from pipeline.flows.documents.work import split
from pipeline.flows.documents.work.page_lane import PageLane
from pipeline.reading.pdf import inspection
from pipeline.reading.sandbox.limits import Limits
from pipeline.settings import LOCAL
from pipeline.storage.context import Context
from tests.support import bombs
from tests.support.documents import document, pages
from tests.support.samples import Sheet, pdf_bytes, shown

OWNER = Owner("w1", "request:0")


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {
        "PENSTOCK_DOCUMENTS__READER_MEMORY_MB": "200",
        "PENSTOCK_PROVIDERS__EYES__BASE_URL": "http://127.0.0.1:9",
        "PENSTOCK_PROVIDERS__EYES__MODEL": "m",
    }


@pytest.fixture
def with_bomb(tmp_path: Path) -> Path:
    """Three pages. The second needs more memory than the limit."""
    path = tmp_path / "three.pdf"
    bomb = bombs.nested_forms_sheet(first=7)
    path.write_bytes(pdf_bytes([Sheet(shown("one", 72, 700)), bomb, Sheet(shown("three", 72, 700))]))
    return path


def test_a_page_past_the_memory_limit_fails_once_and_the_others_are_converted(
    context: Context, with_bomb: Path
) -> None:
    document_id = submission.submit(context, with_bomb, Options()).id
    assert split.split_document(context, document_id, OWNER)
    while PageLane(context, document_id, CPU, [LOCAL], OWNER).run(quantum_s=60).requeue:
        pass
    rows = pages(context, document_id)
    assert [page.status for page in rows] == [PageStatus.COMPLETED, PageStatus.FAILED, PageStatus.COMPLETED]
    assert [page.content for page in rows] == ["one", "", "three"]
    assert (rows[1].attempts, rows[1].error) == (1, "Reading page 2 takes more than the allowed 200 MB.")
    assert document(context, document_id).status == DocumentStatus.PARTIAL_FAILED


def test_a_page_that_cannot_be_drawn_for_a_provider_fails_alone(context: Context, with_bomb: Path) -> None:
    document_id = submission.submit(context, with_bomb, Options(provider="eyes")).id
    assert split.split_document(context, document_id, OWNER)
    first, second, third = pages(context, document_id)
    assert Path(first.image_path).exists()
    assert Path(third.image_path).exists()
    assert second.image_path is None
    with context.db.transaction() as session:
        session.execute(PAGES.delete().where(PAGES.c.id != second.id))
    PageLane(context, document_id, "vision.eyes", ["eyes"], OWNER).run(quantum_s=0)
    (page,) = pages(context, document_id)
    assert (page.status, page.attempts) == (PageStatus.FAILED, 1)
    assert page.error == "Reading page 2 takes more than the allowed 200 MB."


def test_splitting_has_a_limit_of_its_own(context: Context, tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(pdf_bytes([Sheet(shown("one", 72, 700))]))
    document_id = submission.submit(context, path, Options()).id
    context.settings.documents.split_timeout_s = 1e-9
    assert not split.split_document(context, document_id, OWNER)
    row = document(context, document_id)
    assert (row.status, row.error) == (
        DocumentStatus.FAILED,
        "Splitting takes more than 1e-09 s; convert it in parts.",
    )


def test_cancelling_a_document_during_its_split_stops_its_child_process(
    context: Context, with_bomb: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document_id = submission.submit(context, with_bomb, Options()).id
    renew: Callable[..., Any] = stage.renew

    def cancelled_first(*arguments: Any) -> None:
        service.cancel(context, document_id)
        renew(*arguments)

    monkeypatch.setattr(split, "RENEW_EVERY_S", 0.0)
    monkeypatch.setattr(stage, "renew", cancelled_first)
    assert not split.split_document(context, document_id, OWNER)
    assert document(context, document_id).status == DocumentStatus.CANCELLED
    busy = [process for process in psutil.Process().children() if process.cpu_percent(0.05) > 50]
    assert busy == []


def test_a_file_whose_inspection_exceeds_its_limit_is_refused_and_not_stored(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "_CAPS", Limits(timeout_s=1, memory_mb=1_500))
    with pytest.raises(UserError) as caught:
        submission.submit(context, bombs.many_scans(tmp_path / "photo.jpg"), Options())
    assert (caught.value.code, str(caught.value)) == ("too_slow", "Reading photo.jpg takes more than 1 s; split it.")
    assert list(context.settings.upload_dir.iterdir()) == []
