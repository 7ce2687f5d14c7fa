"""The load of other documents at the same provider."""

import pytest

from pipeline.flows.documents.queries import load_beside
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.flows.documents.views import Load
from pipeline.storage.context import Context
from tests.support.documents import insert_document


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


def test_pages_of_another_provider_do_not_count_as_load(context: Context) -> None:
    waiting = [PageStatus.PENDING] * 3
    document_id = insert_document(context, DocumentStatus.PROCESSING, waiting, provider="q")
    insert_document(context, DocumentStatus.PROCESSING, waiting, provider="p")
    assert load_beside(context, {document_id}, "q") == Load(0, 0)
    insert_document(context, DocumentStatus.PROCESSING, waiting, provider="q")
    assert load_beside(context, {document_id}, "q") == Load(1, 3)
