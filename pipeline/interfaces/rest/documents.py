"""`/api/v1/documents`: submit, list, show and delete documents."""

from datetime import datetime
from functools import partial
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from pipeline.engine.errors import UserError
from pipeline.engine.wire import ByName
from pipeline.flows.documents.catalog import Filter
from pipeline.flows.documents.states import DocumentStatus
from pipeline.flows.documents.submission import Options
from pipeline.flows.documents.views import EXAMPLE, DocumentView, Hits
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, here, reader, spender, writer
from pipeline.interfaces.http.errors import RETRY_S, documented
from pipeline.interfaces.http.fields import HexId, Limit, Line, Search, Wait
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.long_poll import wait_for
from pipeline.interfaces.http.moments import Since, Until
from pipeline.interfaces.http.pages import Cursor, Page
from pipeline.interfaces.http.remote import fetched
from pipeline.interfaces.http.submission import FormOptions, SubmitOptions, options_of
from pipeline.interfaces.http.uploads import Form, uploaded
from pipeline.operations import documents
from pipeline.operations.documents import Document
from pipeline.operations.refusal import Refused
from pipeline.reading.text.content_type import ARCHIVE

router = APIRouter(prefix="/documents", tags=["documents"], route_class=JsonRoute)
PATH = "/api/v1/documents"
Status = Annotated[DocumentStatus, ByName()]
Statuses = Annotated[list[Status] | None, Query(max_length=10, description="Only documents in one of these states.")]
Words = Annotated[
    Annotated[Line, StringConstraints(min_length=1)], Query(description="Words in any script, such as: invoice march.")
]
_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_FORM = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file"],
                "properties": {
                    "file": {
                        "type": "string",
                        "format": "binary",
                        "description": "A PDF, a picture, an Office, OpenDocument, EPUB, HTML, e-mail or text file.",
                    },
                    **FormOptions.model_json_schema()["properties"],
                },
            }
        },
        "application/octet-stream": _BINARY,
        "application/pdf": _BINARY,
    },
}


@router.get("", dependencies=reader)
def list_documents(
    caller: ByCaller,
    status: Statuses = None,
    q: Search = None,
    created_from: Since = None,
    created_before: Until = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[DocumentView]:
    """List documents, newest first."""
    which = Filter(frozenset(status or ()), q or "", created_from, created_before)
    rows = documents.list_documents.by(caller, which=which, limit=limit + 1, after=pages.decode(cursor, datetime, str))
    explained = documents.explained.by(caller, rows[:limit]) + rows[limit:]
    return pages.views(explained, limit, lambda document: (document.created_at, document.id))


class CountsShape(BaseModel):
    """The number of documents."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"total": 12, "by_status": {"COMPLETED": 12}}]})
    total: int
    by_status: dict[str, int] = Field(description="By state, without states that have none.")


# Before the routes with an id, or `counts` would match as an id.
@router.get("/counts", dependencies=reader)
def count(caller: ByCaller, q: Search = None, created_from: Since = None, created_before: Until = None) -> CountsShape:
    """Count documents by state."""
    which = Filter(name=q or "", created_from=created_from, created_before=created_before)
    counts = documents.count_by_status.by(caller, which)
    return CountsShape(total=sum(counts.values()), by_status={state.name: counts[state] for state in sorted(counts)})


@router.post(
    "",
    status_code=202,
    dependencies=[*writer, *spender],
    openapi_extra={"requestBody": _FORM},
    responses={
        200: {"model": DocumentView, "description": "With `wait`: the document is at rest."},
        202: {
            "description": "Conversion is in progress.",
            "headers": {"Location": {"description": "The address of the document.", "schema": {"type": "string"}}},
            "content": {"application/json": {"example": {**EXAMPLE, "status": "PENDING", "settled": False}}},
        },
        **documented(409, 415, 507),
    },
)
async def submit(
    request: Request, response: Response, caller: ByCaller, form: Annotated[Form, Depends(uploaded())], wait: Wait = 0
) -> DocumentView:
    """Submit a file. The same content and options return the same document, unless `fresh`.

    Send `multipart/form-data` with a field `file`, and options as further fields; or the file itself as the body, its
    name percent-encoded in `X-Filename`, and options in the query.
    """
    if len(form.files) != 1:
        raise Refused("send one file, in the field `file`", code="invalid")
    file, options = form.files[0], options_of(form)
    try:
        document = await run_sync(documents.submit_upload.by, caller, file.path, file.filename, options, file.sha256)
    except UserError as error:
        if error.code != ARCHIVE:
            raise
        raise Refused(f"{file.filename} is an archive: send it to {PATH}/archive", code="unsupported") from None
    return accepted(request, response, await settled(request, document.id, wait), wait)


class ArchivedShape(BaseModel):
    """A file of an archive."""

    name: str = Field(description="Its path inside the archive.")
    document: DocumentView | None = Field(description="Null if the file was refused.")
    reason: str = Field(description="Why the file was refused; else empty.")


class ArchiveShape(BaseModel):
    """The files of an archive, in its order."""

    files: list[ArchivedShape]


@router.post(
    "/archive",
    status_code=202,
    dependencies=[*writer, *spender],
    openapi_extra={"requestBody": _FORM},
    responses=documented(409, 415, 507),
)
async def submit_archive(caller: ByCaller, form: Annotated[Form, Depends(uploaded())]) -> ArchiveShape:
    """Submit each file of a ZIP archive as a document of its own. The options count for all of them.

    A refused file does not stop the others. Office files and books are documents, though ZIP files too.
    """
    if len(form.files) != 1:
        raise Refused("send one archive, in the field `file`", code="invalid")
    file, options = form.files[0], options_of(form)
    files = await run_sync(documents.submit_archive.by, caller, file.path, file.filename, options)
    if files is None:
        raise Refused(f"{file.filename} is not a ZIP archive of files: send it to {PATH}", code="unsupported")
    shapes = [ArchivedShape(name=each.name, document=each.document, reason=each.reason) for each in files]
    return ArchiveShape(files=shapes)


class Address(SubmitOptions):
    """The address of the file, and the options of its conversion."""

    url: Annotated[Line, Field(min_length=1, description="http or https, at a public address.")]


@router.post(
    "/url",
    status_code=202,
    dependencies=[*writer, *spender],
    responses={
        200: {"model": DocumentView, "description": "The document is at rest."},
        **documented(404, 409, 415, 507),
    },
)
async def submit_url(
    request: Request, response: Response, caller: ByCaller, address: Address, wait: Wait = 0
) -> DocumentView:
    """Fetch a file and submit it. The server refuses (403) unless its settings allow it."""
    options = Options(**address.model_dump(exclude={"url"}))
    async with fetched(caller, address.url) as file:
        document = await run_sync(documents.submit_upload.by, caller, file.path, file.filename, options, file.sha256)
    return accepted(request, response, await settled(request, document.id, wait), wait)


async def settled(request: Request, document_id: str, wait_s: float) -> Document:
    """Return the document once it is at rest or paused, or its state after `wait_s` seconds, earlier if too many
    requests wait. Raises `UnknownDocument`."""
    read = partial(documents.status.by, request.state.caller, document_id)
    return await wait_for(request.state.caller, read, lambda now: now.settled, wait_s)


def accepted(request: Request, response: Response, document: Document, wait: float = 0) -> DocumentView:
    """Return the document, and set status and headers of the response: 200 if the caller waited and the document is at
    rest or paused, else 202."""
    response.headers["Location"] = here(request, f"{PATH}/{document.id}")
    if wait and document.settled:
        response.status_code = 200
    else:
        response.status_code = 202
        response.headers["Retry-After"] = str(RETRY_S)
    return document


# Before the routes with an id, or `search` would match as an id.
@router.get("/search", dependencies=reader)
def search(
    caller: ByCaller,
    q: Words,
    status: Statuses = None,
    name: Search = None,
    created_from: Since = None,
    created_before: Until = None,
    limit: Limit = 20,
) -> Hits:
    """Find pages by their words in all merged documents, best first."""
    which = Filter(frozenset(status or ()), name or "", created_from, created_before)
    return documents.search.by(caller, q, which, limit=limit)


@router.get("/{document_id}", dependencies=reader, responses=documented(404))
async def show(request: Request, document_id: HexId, wait: Wait = 0) -> DocumentView:
    """Show a document; with `wait`, once it is at rest or paused."""
    document = await settled(request, document_id, wait)
    return (await run_sync(documents.explained.by, request.state.caller, [document]))[0]


@router.delete("/{document_id}", status_code=204, dependencies=writer, responses=documented(404))
def delete(caller: ByCaller, document_id: HexId) -> None:
    """Delete a document with its pages, attempts and stored files. Its work stops."""
    documents.delete.by(caller, document_id)
