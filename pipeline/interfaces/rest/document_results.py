"""`/api/v1/documents/…`: pages with their pictures, blocks and attempts, and results as files."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from anyio.to_thread import run_sync
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from pydantic import StringConstraints

from pipeline.engine.views import view_of
from pipeline.engine.wire import ByName
from pipeline.flows.documents.page_pictures import MAX_DPI, MAX_WIDTH, MIN_DPI, MIN_WIDTH, Encoding, Rendering
from pipeline.flows.documents.states import PageStatus
from pipeline.flows.documents.views import AttemptView, PageView, PageWithText
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, here, reader
from pipeline.interfaces.http.downloads import from_file
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import HexId, Limit, Line, PageNumber
from pipeline.interfaces.http.pages import Cursor, Page
from pipeline.interfaces.rest.documents import PATH
from pipeline.operations import documents
from pipeline.operations.caller import Caller
from pipeline.operations.refusal import Refused
from pipeline.reading.export.formats import Format
from pipeline.reading.files.inputs import result_name
from pipeline.reading.files.source import safe_stem

router = APIRouter(prefix="/documents", tags=["documents"], dependencies=reader, responses=documented(404))
PictureName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
_PRIVATE_DAY = "private, max-age=86400"
_SMALL = 400
"""Pictures of at most this width are thumbnails; larger pictures have priority over them."""
_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_PICTURE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/png": _BINARY, "image/webp": _BINARY}},
    304: {"description": "The caller has the current one."},
}
_ARCHIVE: dict[int | str, dict[str, Any]] = {200: {"content": {"application/zip": _BINARY}}}
_MARKDOWN: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/markdown": {"schema": {"type": "string"}}}, "description": "The merged Markdown."}
}

_RESULT: dict[int | str, dict[str, Any]] = {
    200: {"content": {form.media_type.partition(";")[0]: _BINARY for form in Format}, "description": "The result."}
}


@router.get("/{document_id}/pages")
def list_pages(
    caller: ByCaller,
    document_id: HexId,
    status: Annotated[Annotated[PageStatus, ByName()] | None, Query(description="Only pages in this state.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[PageView]:
    """List a document's pages in order, without their texts."""
    documents.status.by(caller, document_id)
    (after,) = pages.decode(cursor, PageNumber) or (0,)
    rows = documents.pages.by(caller, document_id, status=status, after=after, limit=limit + 1)
    return pages.views(rows, limit, lambda page: (page.page,))


@router.get("/{document_id}/pages/{page}")
def show_page(caller: ByCaller, document_id: HexId, page: PageNumber) -> PageWithText:
    """Show a page with its Markdown."""
    return view_of(PageWithText, documents.page.by(caller, document_id, page))


@router.get("/{document_id}/pages/{page}/blocks", response_model=dict[str, Any])
def show_blocks(caller: ByCaller, document_id: HexId, page: PageNumber) -> dict[str, Any]:
    """Show the layout of a page: its blocks in reading order, with their boxes in points from its top left corner."""
    layout: dict[str, Any] = documents.layout.by(caller, document_id, page)["pages"][0]
    return layout


@router.get("/{document_id}/pages/{page}/picture", responses=_PICTURE, response_class=Response)
async def show_picture(
    caller: ByCaller,
    request: Request,
    document_id: HexId,
    page: PageNumber,
    dpi: Annotated[int, Query(ge=MIN_DPI, le=MAX_DPI)] = 100,
    width: Annotated[
        int | None, Query(ge=MIN_WIDTH, le=MAX_WIDTH, description="The most width in pixels, instead of `dpi`.")
    ] = None,
    encoding: Annotated[Encoding, Query(description="WebP takes half the size.")] = "png",
    if_none_match: Annotated[Line | None, Header()] = None,
) -> Response:
    """Render a picture of a page of the file."""
    rendering = Rendering(dpi, width or 0, encoding)
    picture = await run_sync(documents.find_page_picture.by, caller, document_id, page, rendering)
    tag = f'"{document_id}-{picture.name}"'
    headers = {"ETag": tag, "Cache-Control": _PRIVATE_DAY}
    if if_none_match and tag in if_none_match:
        return Response(status_code=304, headers=headers)

    def make(wanted: Callable[[], bool]) -> bytes:
        return documents.page_picture.by(
            caller, document_id, page, dpi, wanted, width=rendering.width, encoding=encoding
        )

    content = picture.content
    if content is None:
        pictures, urgent = request.app.state.pictures, rendering.width > _SMALL or not rendering.width
        content = await pictures.get(request.state.caller, tag, make, urgent=urgent)
    if content is None:
        return Response(status_code=503)  # the client left, or the server ends
    return Response(content, media_type=f"image/{encoding}", headers=headers)


@router.get("/{document_id}/pages/{page}/attempts")
def list_page_attempts(
    caller: ByCaller, document_id: HexId, page: PageNumber, limit: Limit = 50, cursor: Cursor = None
) -> Page[AttemptView]:
    """List every attempt of a page, oldest first, with its text."""
    documents.page.by(caller, document_id, page)
    return _attempts(caller, document_id, page, limit, cursor)


@router.get("/{document_id}/attempts")
def list_attempts(caller: ByCaller, document_id: HexId, limit: Limit = 50, cursor: Cursor = None) -> Page[AttemptView]:
    """List every attempt of a document's pages, page by page."""
    documents.status.by(caller, document_id)
    return _attempts(caller, document_id, None, limit, cursor)


def _attempts(caller: Caller, document_id: str, page: int | None, limit: int, cursor: str | None) -> Page[AttemptView]:
    rows = documents.attempts.by(
        caller, document_id, page, after=pages.decode(cursor, PageNumber, int), limit=limit + 1
    )
    return pages.views(rows, limit, lambda attempt: (attempt.page, attempt.id))


@router.get("/{document_id}/markdown", responses={**_MARKDOWN, **documented(409)}, response_class=FileResponse)
def download_markdown(caller: ByCaller, document_id: HexId) -> FileResponse:
    """Download the Markdown. Its links use the names of pictures in `GET …/pictures`."""
    path = documents.status.by(caller, document_id).result_path
    return FileResponse(
        path, media_type="text/markdown; charset=utf-8", filename=path.name, content_disposition_type="attachment"
    )


@router.get("/{document_id}/json", responses=documented(409), response_model=dict[str, Any])
def download_json(caller: ByCaller, document_id: HexId) -> Response:
    """Download the blocks of all pages in reading order, with their boxes, as JSON."""
    document = documents.status.by(caller, document_id)
    file = documents.layout_file.by(caller, document_id)
    return from_file(file, Format.JSON.media_type, f"{Path(document.filename).stem}.json")


@router.get("/{document_id}/result", responses={**_RESULT, **documented(409)}, response_class=Response)
def download_result(
    caller: ByCaller,
    document_id: HexId,
    form: Annotated[Format, Query(alias="format")] = Format.MD,
    page_markers: Annotated[bool, Query(description="Keep the marks between the pages of Markdown.")] = True,
) -> Response:
    """Download the result in a format; `pdf` is the submitted file with an invisible text layer.

    The first request for a PDF makes it: milliseconds for each page that was recognised, seconds for each page that a
    model read.
    """
    document = documents.status.by(caller, document_id)
    if form is Format.PDF and document.merged_path:
        # A file of any size is streamed.
        path = documents.searchable_pdf.by(caller, document_id)
        return FileResponse(path, media_type=form.media_type, filename=result_name(document.filename, form.suffix))
    file = documents.result_file.by(caller, document_id, form, markers=page_markers)
    return from_file(file, form.media_type, result_name(document.filename, form.suffix))


@router.get("/{document_id}/manifest", responses=documented(409), response_model=dict[str, Any])
def show_manifest(caller: ByCaller, document_id: HexId) -> dict[str, Any]:
    """Show the manifest: the document, each page with its attempts, and the totals, without texts."""
    return documents.manifest.by(caller, document_id)


@router.get("/{document_id}/archive", responses={**_ARCHIVE, **documented(409)}, response_class=StreamingResponse)
def download_archive(
    caller: ByCaller,
    document_id: HexId,
    split: Annotated[Literal["pages"] | None, Query(description="With the Markdown of each page as a file.")] = None,
    tables: Annotated[Literal["csv"] | None, Query(description="With each table as a CSV file.")] = None,
) -> StreamingResponse:
    """Download a ZIP archive: Markdown, its linked pictures, the blocks of all pages, the manifest."""
    document = documents.status.by(caller, document_id)
    name = quote(f"{safe_stem(document.filename)}.zip")
    headers = {"Content-Disposition": f"attachment; filename*=utf-8''{name}"}
    pieces = documents.archive.by(caller, document_id, split=split is not None, tables=tables is not None)
    return StreamingResponse(pieces, media_type="application/zip", headers=headers)


@router.get("/{document_id}/pictures")
def list_pictures(
    caller: ByCaller, request: Request, document_id: HexId, limit: Limit = 100, cursor: Cursor = None
) -> Page[str]:
    """List the addresses of the pictures that the Markdown links to, if the submission asked for pictures."""
    folder = documents.status.by(caller, document_id).pictures_folder
    (after,) = pages.decode(cursor, str) or ("",)
    names = sorted(path.name for path in folder.iterdir() if path.suffix in _TYPES) if folder else []
    shown = [name for name in names if name > after][: limit + 1]
    return pages.page(
        shown, limit, lambda name: here(request, f"{PATH}/{document_id}/pictures/{quote(name)}"), lambda name: (name,)
    )


@router.get("/{document_id}/pictures/{name}", responses=_PICTURE, response_class=FileResponse)
def show_extracted_picture(caller: ByCaller, document_id: HexId, name: PictureName) -> FileResponse:
    """Download a picture from a page."""
    folder = documents.status.by(caller, document_id).pictures_folder
    # Match against the folder's listing: no name from a request becomes a path.
    picture = next((path for path in folder.iterdir() if path.name == name), None) if folder else None
    if picture is None or picture.suffix not in _TYPES or not picture.is_file():
        raise Refused(f"document {document_id} has no picture with this name", code="no_picture")
    return FileResponse(picture, media_type=_TYPES[picture.suffix], headers={"Cache-Control": _PRIVATE_DAY})
