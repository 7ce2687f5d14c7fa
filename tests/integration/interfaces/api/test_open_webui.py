"""The interfaces of Open WebUI's loaders. `make clients` tests them with Open WebUI."""

from pathlib import Path

import pytest
from sqlalchemy import select, update
from starlette.testclient import TestClient

from pipeline.flows.documents.models import DOCUMENTS, PAGES
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.storage.context import Context
from tests.support.cli import new_pdf
from tests.support.documents import page_row, write_output

HEADERS = {"Content-Type": "application/pdf", "X-Filename": "%C3%9Cber%20uns.pdf"}


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_API__MAX_SYNC_WAIT_S": "0.2"}


@pytest.fixture
def pdf(tmp_path: Path) -> bytes:
    return new_pdf(tmp_path / "report.pdf", 2).read_bytes()


def finish(context: Context, text: str | None = None) -> None:
    """Complete the only document, in place of the workers."""
    with context.db.transaction() as session:
        row = session.execute(select(DOCUMENTS)).one()
        for number in (1, 2):
            values = page_row(row.id, number, PageStatus.COMPLETED, "local")
            session.execute(PAGES.insert().values(**values | ({} if text is None else {"content": text})))
        values = {"status": DocumentStatus.COMPLETED, "pages": 2, "completed_count": 2}
        session.execute(update(DOCUMENTS).values(**values, merged_path=write_output(context, row.id)))


def test_the_external_loader_gets_a_text_for_each_page_of_a_ready_document(
    api: TestClient, context: Context, pdf: bytes
) -> None:
    late = api.put("/process", content=pdf, headers=HEADERS)
    assert late.status_code == 504
    finish(context)
    pages = api.put("/process", content=pdf, headers=HEADERS).json()
    assert [page["page_content"] for page in pages] == ["text of page 1", "text of page 2"]
    assert [(page["metadata"]["source"], page["metadata"]["page"]) for page in pages] == [
        ("Über uns.pdf", 0),
        ("Über uns.pdf", 1),
    ]


def test_a_document_without_text_is_an_error_so_that_another_loader_can_try(
    api: TestClient, context: Context, pdf: bytes
) -> None:
    api.put("/process", content=pdf, headers=HEADERS)
    finish(context, text="")
    answer = api.put("/process", content=pdf, headers=HEADERS)
    assert answer.status_code == 422
    assert answer.json()["detail"] == "No extractable text in Über uns.pdf"


def test_an_unconvertible_file_is_refused_with_the_reason(api: TestClient, pdf: bytes) -> None:
    assert "empty" in api.put("/process", content=b"", headers=HEADERS).json()["detail"]
    several = [("files", ("a.pdf", pdf)), ("files", ("b.pdf", pdf))]
    assert api.put("/process", files=several).status_code == 413
    assert api.put("/process", content=pdf, headers={"Content-Type": "text/plain"}).status_code == 415
    refused = api.post("/file_parse", files={"files": ("a.pdf", b"not a pdf")})
    assert (refused.status_code, "not of a supported type" in refused.json()["detail"]) == (415, True)


def test_mineru_answers_with_the_markdown_of_each_file(api: TestClient, context: Context, pdf: bytes) -> None:
    files = {"files": ("a b.pdf", pdf, "application/octet-stream")}
    form = {"return_md": "true", "backend": "pipeline", "lang_list": "ch"}
    assert api.post("/file_parse", files=files, data=form).status_code == 504
    finish(context)
    result = api.post("/file_parse", files=files, data=form).json()
    assert (result["backend"], list(result["results"])) == ("penstock", ["a b"])
    assert result["results"]["a b"]["md_content"] == "text of page 1\n\ntext of page 2"


def test_mineru_counts_pages_from_zero(api: TestClient, context: Context, pdf: bytes) -> None:
    files = {"files": ("a.pdf", pdf)}
    api.post("/file_parse", files=files, data={"start_page_id": "1", "end_page_id": "99999"})
    with context.db.read() as session:
        assert session.execute(select(DOCUMENTS.c.page_range)).scalar_one() == "2"
    for wrong in ({"start_page_id": "x"}, {"start_page_id": "-5"}, {"start_page_id": "3", "end_page_id": "1"}):
        assert api.post("/file_parse", files=files, data=wrong).status_code == 422
