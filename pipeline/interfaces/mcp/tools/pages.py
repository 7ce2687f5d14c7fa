"""Tools that read a document: its Markdown by pages or piece by piece, and pages as pictures."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from anyio.to_thread import run_sync
from pydantic import BaseModel, Field

from pipeline.flows.documents.page_pictures import MIN_DPI
from pipeline.flows.documents.states import PageStatus
from pipeline.flows.documents.views import PageView
from pipeline.interfaces.http.fields import HexId
from pipeline.interfaces.http.submission import PageRange
from pipeline.interfaces.mcp.tool import Arguments, Call, Picture, Toolbox
from pipeline.operations import documents as flow
from pipeline.operations.documents import Document
from pipeline.operations.refusal import Refused
from pipeline.reading.files.source import parse_page_range

BOX = Toolbox()
MAX_PAGES = 200
"""Pages that one call reads by their numbers."""
MAX_PICTURE_BYTES = 3_000_000
"""Clients refuse larger pictures; the tool renders such a page at a lower resolution."""
Characters = Annotated[int, Field(ge=100, le=100_000, description="At most this many characters.")]


class Excerpt(BaseModel):
    """A piece of a document's Markdown."""

    markdown: str
    offset: int = Field(description="Start of this piece, in characters.")
    next_offset: int | None = Field(description="Start of the next piece; null at the end.")
    total_characters: int


class Markdown(Excerpt):
    """Markdown of a document."""

    document_id: str
    filename: str
    status: str
    pages: list[int] = Field(description="The requested pages in the text.")
    missing_pages: list[int] = Field(description="The requested pages that are not converted.")


def cut(text: str, offset: int = 0, limit: int = 20_000) -> Excerpt:
    """The piece of a text from character `offset` on, of at most `limit` characters, and the offset of the next
    piece."""
    piece = text[offset : offset + limit]
    end = offset + len(piece)
    following = end if piece and end < len(text) else None
    return Excerpt(markdown=piece, offset=offset, next_offset=following, total_characters=len(text))


def excerpt(document: Document) -> Excerpt:
    """The first 4,000 characters of a document's Markdown. Blocks."""
    return cut(document.read_text(), limit=4000)


class WhichText(Arguments):
    """The document, and the part of its text."""

    document_id: HexId
    pages: PageRange = Field(default="", description="Such as `1-3,7`, by their place in the result; empty: all.")
    offset: int = Field(default=0, ge=0, le=2**40, description="Begin at this character.")
    limit: Characters = 20_000


@BOX.tool("Read a document's Markdown")
def get_markdown(call: Call, arguments: WhichText) -> Markdown:
    """Read the Markdown of a document, or of some of its pages, a piece at a time.

    With pages, it also reads the completed pages of an unfinished document. Continue at next_offset.
    """
    del call
    document = flow.status(arguments.document_id)
    shown: list[int] = []
    missing: list[int] = []
    if arguments.pages.strip():
        text, shown, missing = _of_pages(document, arguments.pages)
    else:
        if not document.merged_path or not Path(document.merged_path).is_file():
            raise Refused(f"document {document.id} has no result: it is {document.status.name}", code="no_result")
        text = document.read_text()
    piece = cut(text, arguments.offset, arguments.limit)
    return Markdown(
        **piece.model_dump(),
        document_id=document.id,
        filename=document.filename,
        status=document.status.name,
        pages=shown,
        missing_pages=missing,
    )


def _of_pages(document: Document, wanted: str) -> tuple[str, list[int], list[int]]:
    """Return (the text, the numbers of the pages in it, the numbers of requested pages that are neither completed nor
    have an earlier text).

    `wanted`: a range of numbers in the result, from 1. Raises `Refused` before the document is split and for more than
    `MAX_PAGES` pages, `UserError` for a wrong range.
    """
    if not document.pages:
        raise Refused(f"document {document.id} is not split into pages yet", code="no_result")
    numbers = parse_page_range(wanted, document.pages)
    if len(numbers) > MAX_PAGES:
        raise Refused(f"one call reads at most {MAX_PAGES} pages: name fewer", code="too_many_pages")
    pages = flow.pages(document.id, after=numbers[0] - 1, limit=numbers[-1] - numbers[0] + 1)
    done = {page.page: page.content for page in pages if page.status is PageStatus.COMPLETED or page.content}
    shown = [number for number in numbers if number in done]
    return "\n\n".join(done[number] for number in shown), shown, [page for page in numbers if page not in done]


class WhichPicture(Arguments):
    """The page, and the resolution."""

    document_id: HexId
    page: int = Field(ge=1, le=1_000_000, description="Its place in the result, from 1.")
    dpi: int = Field(default=80, ge=MIN_DPI, le=150, description="Dots for each inch: more for small print.")


class AboutPicture(BaseModel):
    """The subject of a picture."""

    document_id: str
    filename: str
    page: int
    page_source: int = Field(description="Its place in the file, from 1.")
    dpi: int
    size_bytes: int


@BOX.tool("Look at a page", result=AboutPicture)
async def get_page_image(call: Call, arguments: WhichPicture) -> Picture:
    """Show a page of the file as a PNG, to compare it with its Markdown."""
    document = await run_sync(flow.status, arguments.document_id)
    page = await run_sync(flow.page, arguments.document_id, arguments.page)
    dpi = arguments.dpi
    png = await _picture(call, document, page, dpi)
    while len(png) > MAX_PICTURE_BYTES and dpi > MIN_DPI:
        dpi = max(MIN_DPI, dpi // 2)
        png = await _picture(call, document, page, dpi)
    if len(png) > MAX_PICTURE_BYTES:
        raise Refused(f"page {page.page} is too large for a picture: read its Markdown", code="too_large")
    about = AboutPicture(
        document_id=document.id,
        filename=document.filename,
        page=page.page,
        page_source=page.page_source,
        dpi=dpi,
        size_bytes=len(png),
    )
    return Picture(png, about)


async def _picture(call: Call, document: Document, page: PageView, dpi: int) -> bytes:
    def make(wanted: Callable[[], bool]) -> bytes:
        return flow.page_picture(document.id, page.page, dpi, wanted)

    key = f"mcp {document.id} {page.page_source} {dpi}"
    png: bytes | None = await call.pictures.get(call.caller, key, make, urgent=True)
    if png is None:
        raise Refused("the server is shutting down: try again in a moment", code="ending")
    return png
