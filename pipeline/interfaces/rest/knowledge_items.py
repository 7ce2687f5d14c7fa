"""`/knowledge-items`, and the items of a base: show, list, reprocess, cancel and delete one item or all that match."""

from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator

from pipeline.flows.knowledge.service import CancelStatus
from pipeline.flows.knowledge.states import ItemStatus, ItemType
from pipeline.flows.knowledge.texts import MAX_CHARS
from pipeline.flows.knowledge.views import CAMEL, ChunkView, ItemView, ShownItem, TextView, shown_item
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, here, reader, spender, writer
from pipeline.interfaces.http.errors import RETRY_S, documented
from pipeline.interfaces.http.fields import HexId, Limit, Line, PageNumber, Strict, Wait, Word
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.long_poll import wait_for
from pipeline.interfaces.http.pages import Cursor, Page
from pipeline.interfaces.rest.document_actions import Acted
from pipeline.operations import knowledge
from pipeline.operations.knowledge import MOST_AT_ONCE, Verb

router = APIRouter(tags=["knowledge"], responses=documented(404), route_class=JsonRoute)
PATH = "/api/v1/knowledge-items"
_PICTURE: dict[int | str, dict[str, Any]] = {
    **documented(409),
    200: {"content": {"image/webp": {"schema": {"type": "string", "format": "binary"}}}},
    304: {"description": "The caller has the current one."},
}
Progress = Annotated[bool, Query(alias="includeProgress", description="False: `progress` is null.")]
Standing = Annotated[
    bool, Query(alias="includeStanding", description="Include the current activity, which takes longer to find.")
]
Statuses = Annotated[list[ItemStatus] | None, Query(max_length=10, description="Only items in one of these states.")]
Types = Annotated[list[ItemType] | None, Query(alias="type", max_length=10, description="Only items of these types.")]
Group = Annotated[Word | None, Query(alias="groupId", description="Only items of this folder.")]


@router.get("/knowledge-bases/{base_id}/items", dependencies=reader)
def list_items(
    caller: ByCaller,
    base_id: HexId,
    status: Statuses = None,
    types: Types = None,
    group_id: Group = None,
    q: Annotated[Line | None, Query(description="Only items with this text in their name or title.")] = None,
    *,
    include_progress: Progress = True,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ShownItem]:
    """List the items of a base in the order of its queue, including those in deletion."""
    rows = knowledge.items.by(
        caller,
        base_id,
        status=status or (),
        types=types or (),
        group_id=group_id or "",
        words=q or "",
        limit=limit + 1,
        after=pages.decode(cursor, int, str),
    )
    return pages.page(
        rows, limit, lambda view: shown_item(view, progress=include_progress), lambda view: (view.position, view.id)
    )


@router.get("/knowledge-items/{item_id}", dependencies=reader)
async def show_item(
    caller: ByCaller,
    item_id: HexId,
    *,
    include_progress: Progress = True,
    include_standing: Standing = False,
    wait: Wait = 0,
) -> ShownItem:
    """Show an item with its progress; with `wait`, once it is completed or failed."""

    def read() -> tuple[ItemView, ShownItem]:
        view = knowledge.item.by(caller, item_id)
        standing = knowledge.standings.by(caller, [item_id]).get(item_id) if include_standing else None
        return view, shown_item(view, progress=include_progress, standing=standing)

    _, shown = await wait_for(caller, read, lambda answer: answer[0].at_rest and not answer[0].deleting, wait)
    return shown


@router.get("/knowledge-items/{item_id}/chunks", dependencies=reader)
def list_chunks(caller: ByCaller, item_id: HexId, limit: Limit = 50, cursor: Cursor = None) -> Page[ChunkView]:
    """List the searchable chunks of an item, in text order."""
    knowledge.item.by(caller, item_id)
    after = pages.decode(cursor, int)
    first = min(after[0] + 1, 2**31 - 1) if after else 0
    rows = knowledge.chunks.by(caller, item_id, first=first, limit=limit + 1)
    return pages.views(rows, limit, lambda chunk: (chunk.number,))


@router.get("/knowledge-items/{item_id}/text", dependencies=reader)
def show_text(
    caller: ByCaller,
    item_id: HexId,
    start: Annotated[int, Query(ge=0, le=2**31 - 1, description="The first character.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_CHARS, description="At most this many characters.")] = 100_000,
) -> TextView:
    """Show the searchable text of an item, a part at a time."""
    return knowledge.text.by(caller, item_id, start=start, limit=limit)


@router.get(
    "/knowledge-items/{item_id}/file", dependencies=reader, response_class=FileResponse, responses=documented(409)
)
def download_file(caller: ByCaller, item_id: HexId) -> FileResponse:
    """Download the stored copy of an item's file or note. Addresses have none."""
    original = knowledge.original.by(caller, item_id)
    return FileResponse(original.path, filename=original.name, media_type="application/octet-stream")


@router.get(
    "/knowledge-items/{item_id}/pages/{page}/picture", dependencies=reader, responses=_PICTURE, response_class=Response
)
async def show_page_picture(
    request: Request,
    caller: ByCaller,
    item_id: HexId,
    page: PageNumber,
    width: Annotated[int, Query(ge=40, le=2000, description="The most width in pixels.")] = 1000,
    if_none_match: Annotated[Line | None, Header()] = None,
) -> Response:
    """Render a picture of a page of the stored copy, if the item is a PDF or a picture."""
    copy = await run_sync(knowledge.original.by, caller, item_id)
    tag = f'"{item_id}-{copy.path.name[:16]}-{page}-{width}"'
    headers = {"ETag": tag, "Cache-Control": "private, max-age=86400"}
    if if_none_match and tag in if_none_match:
        return Response(status_code=304, headers=headers)
    picture = await request.app.state.pictures.get(
        caller, tag, lambda wanted: knowledge.page_picture.by(caller, item_id, page, width, wanted), urgent=True
    )
    if picture is None:
        return Response(status_code=503)  # the client left, or the server ends
    return Response(picture, media_type="image/webp", headers=headers)


@router.post("/knowledge-items/{item_id}/reprocess", status_code=202, dependencies=[*writer, *spender])
async def reprocess(
    request: Request,
    response: Response,
    caller: ByCaller,
    item_id: HexId,
    *,
    accept_missing: Annotated[
        bool, Query(alias="acceptMissing", description="Read a sitemap even if most of its pages are missing.")
    ] = False,
    wait: Wait = 0,
) -> ShownItem:
    """Read and embed an item again, from 0 percent, at the end of its base's queue. Searches find the old chunks until
    the new ones are complete."""

    first = [partial(knowledge.reprocess.by, accept_missing=accept_missing)]

    def read() -> ItemView:
        return (first.pop() if first else knowledge.item.by)(caller, item_id)

    view = await wait_for(caller, read, lambda now: now.at_rest, wait)
    response.headers["Location"] = here(request, f"{PATH}/{item_id}")
    response.status_code = 200 if wait and view.at_rest else 202
    if response.status_code == 202:
        response.headers["Retry-After"] = str(RETRY_S)
    return shown_item(view)


class Cancelled(BaseModel):
    """Whether the item was stopped; `ignored`: it had already ended."""

    status: CancelStatus


@router.post("/knowledge-items/{item_id}/cancel", dependencies=writer)
def cancel(caller: ByCaller, item_id: HexId) -> Cancelled:
    """Stop an item: it fails with the error `Cancelled`. An item that has ended does not change: `ignored`."""
    return Cancelled(status=knowledge.cancel.by(caller, item_id))


@router.delete("/knowledge-items/{item_id}", status_code=202, dependencies=writer)
def delete_item(caller: ByCaller, item_id: HexId) -> ShownItem:
    """Delete an item with its file, chunks and vectors. Its work stops. It is `deleting` until all is removed."""
    view = knowledge.item.by(caller, item_id)
    knowledge.delete.by(caller, item_id)
    return shown_item(replace(view, deleting=True))


class ItemFilter(Strict):
    """The filter of the list."""

    model_config = CAMEL
    status: list[ItemStatus] = Field(default_factory=list, max_length=10)
    type: list[ItemType] = Field(default_factory=list, max_length=10)
    group_id: Word | None = None
    q: Line | None = None


class ItemSelection(Strict):
    """The items: either `ids`, or a `filter` (none: all) with `all_matching`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"filter": {"status": ["failed"]}, "all_matching": True}],
            "oneOf": [
                {"required": ["ids"], "properties": {"ids": {"type": "array"}, "all_matching": {"const": False}}},
                {
                    "required": ["all_matching"],
                    "properties": {"ids": {"type": "null"}, "all_matching": {"const": True}},
                },
            ],
        },
    )
    ids: Annotated[list[HexId], Field(max_length=MOST_AT_ONCE)] | None = None
    filter: ItemFilter = Field(default_factory=ItemFilter)
    all_matching: StrictBool = Field(default=False, description="Must be true to act on all that match.")
    cursor: Line | None = Field(
        default=None, description="`next_cursor` of the last answer, to continue with the next items."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> "ItemSelection":
        if (self.ids is None) is not self.all_matching:
            raise ValueError("give ids, or a filter with all_matching: true")
        return self


@router.post("/knowledge-bases/{base_id}/items/actions/{verb}", dependencies=writer)
def act_on_items(caller: ByCaller, base_id: HexId, verb: Verb, selection: ItemSelection) -> Acted:
    """Act on many items of a base, each in its own transaction. At most 500 per request."""
    if selection.ids is not None:
        ids, following = list(dict.fromkeys(selection.ids)), None
        matched = len(ids)
    else:
        chosen = selection.filter
        (after,) = pages.decode(selection.cursor, str) or ("",)
        rows, matched = knowledge.matching.by(
            caller,
            base_id,
            after=after,
            status=chosen.status,
            types=chosen.type,
            group_id=chosen.group_id or "",
            words=chosen.q or "",
            limit=MOST_AT_ONCE + 1,
        )
        page = pages.views(rows, MOST_AT_ONCE, lambda item_id: (item_id,))
        ids, following = page.items, page.next_cursor
    done, skipped = knowledge.act.by(caller, verb, base_id, ids)
    return Acted(matched=matched, done=done, skipped=skipped, next_cursor=following)
