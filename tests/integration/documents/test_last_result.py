"""The result of a document that is converted again: the old one stays readable until a new one replaces it."""

import pytest
from sqlalchemy import update
from structlog.testing import capture_logs

import tasks.documents
from pipeline.engine.claims import Owner
from pipeline.engine.errors import UserError
from pipeline.flows.documents import queries, service
from pipeline.flows.documents.models import PAGES
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.work import merge, split
from pipeline.storage.context import Context
from tests.support.documents import insert_document, set_row, write_output

pytestmark = pytest.mark.both_databases

D, P = DocumentStatus, PageStatus


def test_the_last_good_result_stays_through_failed_and_cancelled_retries(
    context: Context,
) -> None:
    document_id = insert_document(context, D.COMPLETED, [P.COMPLETED] * 2)
    set_row(context, document_id, merged_path=write_output(context, document_id))
    service.retry(context, document_id)
    service.cancel(context, document_id)
    view = tasks.documents.status(document_id)
    assert (view.status, view.outdated, view.read_text()) == (D.CANCELLED, True, "merged before\n")
    service.retry(context, document_id)
    split.split_document(context, document_id, Owner("w", "r:0"))  # the source file is missing
    view = tasks.documents.status(document_id)
    assert (view.status, view.outdated, view.read_text()) == (D.FAILED, True, "merged before\n")
    retried = insert_document(context, D.COMPLETED, [P.COMPLETED] * 2)
    set_row(context, retried, merged_path=write_output(context, retried))
    assert service.remerge(context, retried).outdated
    with capture_logs() as logs:
        assert merge.merge_document(context, retried, Owner("w", "r:0"))
    view = tasks.documents.status(retried)
    assert (view.status, view.outdated, view.read_text()[:15]) == (D.COMPLETED, False, "<!-- Page 1 -->")
    assert [(line["event"], line["worker"]) for line in logs if line["event"].startswith("document.")] == [
        ("document.merged", "w")
    ]


def test_a_result_is_found_in_a_data_folder_that_was_moved(context: Context) -> None:
    document_id = insert_document(context, D.COMPLETED, [P.COMPLETED])
    path = write_output(context, document_id)
    set_row(context, document_id, merged_path=f"/former{path}")
    for view in (tasks.documents.status(document_id), *tasks.documents.list_documents()):
        assert (view.merged_path, view.read_text()) == (path, "merged before\n")
    assert service.remerge(context, document_id).merged_path == path


def test_an_unknown_page_number_that_the_file_has_is_explained(context: Context) -> None:
    document_id = insert_document(context, D.COMPLETED, [P.COMPLETED] * 2, page_range="600-601")
    with context.db.transaction() as session:
        session.execute(update(PAGES).where(PAGES.c.document_id == document_id).values(page_source=PAGES.c.page + 599))
    for ask in (queries.page, service.retry_page):
        with pytest.raises(UserError, match="has no page 601; page 601 of the file is page 2 here"):
            ask(context, document_id, 601)
    with pytest.raises(UserError, match=r"has no page 700$"):
        queries.page(context, document_id, 700)
