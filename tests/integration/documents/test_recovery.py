"""Pages of a removed provider fail with advice, and all other work continues."""

import pytest

from pipeline.flows.documents import queries, service
from pipeline.flows.documents.flow import FLOW
from pipeline.flows.documents.service import Choice
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.storage.context import Context
from tasks import maintenance
from tests.support.documents import document, insert_document, page_states, pages

D, P = DocumentStatus, PageStatus


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


def test_a_document_whose_provider_was_removed_ends_and_others_go_on(context: Context) -> None:
    orphan = insert_document(context, pages=[P.COMPLETED, P.PENDING, P.RETRYING], provider="gone")
    other = insert_document(context)
    maintenance.fail_unserved()
    maintenance.sweep()
    row = document(context, orphan)
    assert (D(row.status), row.completed_count, row.failed_count) == (D.PARTIAL_FAILED, 1, 2)
    assert page_states(context, orphan) == [P.COMPLETED, P.FAILED, P.FAILED]
    error = pages(context, orphan)[1].error
    for part in ("no provider 'gone'", "PENSTOCK_PROVIDERS__GONE__BASE_URL", f"retry {orphan} --failed --provider"):
        assert part in error
    assert page_states(context, other) == [P.PENDING] * 3
    assert context.redis.llen("cpu") > 0, "the other document's lanes are sent"


def test_following_the_error_s_advice_completes_the_document(context: Context) -> None:
    orphan = insert_document(context, pages=[P.PENDING, P.PENDING], provider="gone")
    assert list(FLOW.fail_unserved(context)) == [orphan]
    assert service.retry_failed(context, orphan, Choice(provider="local")).status is D.PROCESSING
    assert {page.provider for page in queries.pages(context, orphan)} == {"local"}
    assert list(FLOW.fail_unserved(context)) == []


def test_with_partial_results_allowed_the_converted_pages_are_merged(context: Context) -> None:
    orphan = insert_document(context, pages=[P.COMPLETED, P.PENDING], provider="gone", allow_partial=True)
    assert list(FLOW.fail_unserved(context)) == [orphan]
    assert D(document(context, orphan).status) is D.READY_TO_MERGE


def test_recovery_leaves_a_paused_document_alone(context: Context) -> None:
    orphan = insert_document(context, D.PAUSED, pages=[P.PENDING], provider="gone")
    assert list(FLOW.fail_unserved(context)) == []
    assert page_states(context, orphan) == [P.PENDING]
