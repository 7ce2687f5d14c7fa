"""`/api/v1/documents`: submit, list, show and delete documents."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query

from pipeline.interfaces.api import pages
from pipeline.interfaces.api.dependencies import reader
from pipeline.interfaces.api.fields import ByName, HexId, Limit, Search
from pipeline.interfaces.api.pages import Cursor, Page
from pipeline.interfaces.api.problems import documented
from pipeline.interfaces.api.v1.document_shapes import DocumentShape, shape
from tasks import documents as flow
from tasks.documents import DocumentStatus, Filter

router = APIRouter(prefix="/documents", tags=["documents"], dependencies=reader)
Status = Annotated[DocumentStatus, ByName()]
Moment = Annotated[datetime | None, Query(description="With its zone, such as 2026-11-22T10:00:00Z.")]


@router.get("")
def list_documents(
    status: Annotated[list[Status] | None, Query(description="Only those in one of these states.")] = None,
    q: Search = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[DocumentShape]:
    """List documents, newest first."""
    which = Filter(statuses=frozenset(status or ()), name=q or "")
    found = flow.list_documents(which=which, limit=limit + 1, after=pages.decode(cursor, datetime, str))
    return pages.page(found, limit, shape, lambda document: (document.created_at, document.id))


@router.get("/{document_id}", responses=documented(404))
def show(document_id: HexId) -> DocumentShape:
    """Show one document."""
    return shape(flow.status(document_id))
