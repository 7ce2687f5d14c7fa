"""An item of a knowledge base: its progress, its chunks in order, its text, and its actions."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import FileResponse, HTMLResponse
from markupsafe import Markup, escape
from pydantic import BaseModel
from starlette.responses import Response

from pipeline.flows.knowledge.queries import UnknownItem
from pipeline.flows.knowledge.service import CancelStatus
from pipeline.flows.knowledge.states import ItemType
from pipeline.flows.knowledge.texts import MAX_CHARS
from pipeline.flows.knowledge.views import ChunkView
from pipeline.interfaces.console import live, markdown
from pipeline.interfaces.console.answers import done
from pipeline.interfaces.console.page import piece, screen
from pipeline.interfaces.console.page_text import marked
from pipeline.interfaces.console.screens.knowledge_states import shown
from pipeline.interfaces.http.dependencies import ByCaller, InContext, reader, spender, writer
from pipeline.interfaces.http.fields import HexId, Line
from pipeline.operations import knowledge
from pipeline.operations.events import Filter
from pipeline.storage.context import Context

router = APIRouter(prefix="/console/knowledge/items", include_in_schema=False, dependencies=reader)
CHUNKS, CHARS = 20, 20_000
"""Chunks and characters on a page."""
assert CHARS <= MAX_CHARS
Place = Annotated[int, Query(ge=0, le=2**31 - 1)]
_HAS_FILE = {ItemType.FILE, ItemType.DIRECTORY, ItemType.NOTE}


class ItemQuery(live.ViewQuery):
    """One item."""

    item: HexId


@live.view("knowledge-item", matches=lambda query: Filter("knowledge", scope_id=query.item), every_s=10)
def one_item(context: Context, query: ItemQuery) -> dict[str, str]:  # noqa: ARG001
    """Return HTML by element id: the progress of an item."""
    try:
        item = knowledge.item(query.item)
    except UnknownItem:
        return {"kb-item": piece("knowledge/_item_gone.html")}
    state = shown(item, knowledge.standings([item.id]).get(item.id))
    return {"kb-item": piece("knowledge/_item.html", item=item, state=state)}


@router.get("/{item_id}")
def show(request: Request, context: InContext, item_id: HexId, at: Place = 0, q: Line = "") -> HTMLResponse:
    """Show the chunks of an item in text order, on the page of chunk `at`, with the words of `q` marked."""
    item = knowledge.item(item_id)
    first = at // CHUNKS * CHUNKS
    # Include the previous chunk, to find the repeated part.
    rows = knowledge.chunks(item_id, first=max(0, first - 1), limit=CHUNKS + 1)
    before = {chunk.number + 1: chunk for chunk in rows}
    chunks = [chunk for chunk in rows if chunk.number >= first][:CHUNKS]
    return screen(
        request,
        "knowledge/item.html",
        item=item,
        base=knowledge.base(item.base_id) if not item.deleting else None,
        fragments=one_item(context, ItemQuery(item=item_id)),
        first=first,
        step=CHUNKS,
        at=at,
        q=q,
        view="chunks",
        chunks=[(chunk, *_parts(chunk, before.get(chunk.number), q)) for chunk in chunks],
        has_file=item.type in _HAS_FILE,
        page=_page(chunks, at) if knowledge.has_page_pictures(item.id) else None,
    )


def _page(chunks: Sequence[ChunkView], at: int) -> int | None:
    """Return the file's page with chunk `at`, else the first page that these chunks name; None without pages."""
    pages = {chunk.number: chunk.page for chunk in chunks}
    return pages.get(at) or next((page for page in pages.values() if page), None)


def _parts(chunk: ChunkView, before: ChunkView | None, words: str) -> tuple[Markup, Markup]:
    """Return (the part that a chunk repeats of the previous one, the rest), with the words marked."""
    known = max(0, min(len(chunk.text), before.end - chunk.start)) if before else 0
    return marked(escape(chunk.text[:known]), words), marked(escape(chunk.text[known:]), words)


@router.get("/{item_id}/text")
def show_text(request: Request, context: InContext, item_id: HexId, start: Place = 0) -> HTMLResponse:
    """Show the text of an item, a part at a time."""
    item, text = knowledge.item(item_id), knowledge.text(item_id, start=start, limit=CHARS)
    return screen(
        request,
        "knowledge/item.html",
        item=item,
        base=knowledge.base(item.base_id) if not item.deleting else None,
        fragments=one_item(context, ItemQuery(item=item_id)),
        view="text",
        text=text,
        step=CHARS,
        shown=markdown.html([text.text], request.state.caller.id),
        has_file=item.type in _HAS_FILE,
    )


@router.get("/{item_id}/file")
def file(item_id: HexId) -> FileResponse:
    """Send the stored copy as a download."""
    original = knowledge.original(item_id)
    return FileResponse(original.path, filename=original.name, media_type="application/octet-stream")


class Again(BaseModel):
    """The confirmation that most pages of a sitemap are gone."""

    accept_missing: bool = False


@router.post("/{item_id}/reprocess", dependencies=[*writer, *spender])
def reprocess(request: Request, caller: ByCaller, item_id: HexId, form: Annotated[Again, Form()]) -> Response:
    """Queue the item to be read and embedded again. Searches find its old chunks until then."""
    view = knowledge.reprocess.by(caller, item_id, accept_missing=form.accept_missing)
    return done(request, f"{view.name} is being read again. Searches find its current chunks until then.")


@router.post("/{item_id}/cancel", dependencies=writer)
def cancel(request: Request, caller: ByCaller, item_id: HexId) -> Response:
    """Stop the item, unless it has ended: it fails with the error `Cancelled`."""
    ignored = knowledge.cancel.by(caller, item_id) is CancelStatus.IGNORED
    return done(request, "The item had already ended." if ignored else "The item is stopped.")


@router.post("/{item_id}/delete", dependencies=writer)
def delete(request: Request, caller: ByCaller, item_id: HexId) -> Response:
    """Start to delete the item with its chunks, vectors and stored copy."""
    item = knowledge.item(item_id)
    knowledge.delete.by(caller, item_id)
    return done(request, f"{item.name} is being deleted.", to=f"/console/knowledge/bases/{item.base_id}")
