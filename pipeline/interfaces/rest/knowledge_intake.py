"""`POST /knowledge-bases/:id/items`: one item or many; addresses and notes as JSON, files as uploads.

This process reads no sources: it streams files to disk, and workers fetch addresses. No path of a request
names a file of this machine.
"""

from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.responses import JSONResponse

from pipeline.flows.knowledge.intake import Added, Refused, Source
from pipeline.flows.knowledge.queries import UnknownItem
from pipeline.flows.knowledge.states import ItemType
from pipeline.flows.knowledge.views import CAMEL, ShownItem, shown_item
from pipeline.interfaces.http import uploads
from pipeline.interfaces.http.bodies import is_upload
from pipeline.interfaces.http.dependencies import ByCaller, here, spender, writer
from pipeline.interfaces.http.errors import MEDIA_TYPE, RETRY_S, STATUS, Problem, documented
from pipeline.interfaces.http.fields import Given, HexId, Line, LongProse, Name, Strict, Url, Wait
from pipeline.interfaces.http.json_bodies import text_of, turns
from pipeline.interfaces.http.long_poll import wait_for
from pipeline.interfaces.rest.knowledge_bases import PATH as BASES
from pipeline.interfaces.rest.knowledge_items import PATH as ITEMS
from pipeline.operations import knowledge
from pipeline.operations.caller import Caller
from pipeline.operations.knowledge import MAX_FILES, MAX_ITEMS

router = APIRouter(tags=["knowledge"])
_UPLOAD = "the server reads no files by path: upload them to this address as multipart/form-data"


class ItemData(Strict):
    """The source of an item, as in the design."""

    model_config = CAMEL
    url: Url | None = None
    content: LongProse | None = Field(default=None, description="A note, in Markdown.")
    name: Name | None = None
    path: Line | None = None
    file: Given = False
    group_id: Given = False
    group_name: Given = False


class NewItem(ItemData):
    """An item to add: an address, a sitemap or a note. Upload files instead."""

    model_config = ConfigDict(**CAMEL, json_schema_extra={"examples": [{"type": "url", "url": "https://example.com"}]})
    type: ItemType
    data: ItemData | None = Field(default=None, description="The same fields, as in the source.")


class NewItems(Strict):
    """Many items in one request."""

    model_config = CAMEL
    items: Annotated[list[NewItem], Field(min_length=1, max_length=MAX_ITEMS)]


class Report(BaseModel):
    """The outcome of a batch: some items may be added and others refused."""

    created: list[ShownItem]
    failed: list[Refused]
    warnings: list[str] = Field(description="Warnings about added items that will take long.")


BODY: TypeAdapter[NewItem | NewItems | list[NewItem]] = TypeAdapter(
    NewItems | Annotated[list[NewItem], Field(min_length=1, max_length=MAX_ITEMS)] | NewItem
)
_PROPERTIES: dict[str, Any] = {
    "type": {"type": "string", "enum": ["url", "sitemap", "note"]},
    "url": {"type": "string", "description": "The address of a web page or a sitemap."},
    "content": {"type": "string", "description": "A note, in Markdown."},
    "name": {"type": "string", "description": "The name of the item."},
}
_ITEM: dict[str, Any] = {"type": "object", "required": ["type"], "properties": _PROPERTIES}
_SCHEMA = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "oneOf": [
                    _ITEM,
                    {"type": "array", "items": _ITEM, "minItems": 1, "maxItems": MAX_ITEMS},
                    {
                        "type": "object",
                        "required": ["items"],
                        "properties": {
                            "items": {"type": "array", "items": _ITEM, "minItems": 1, "maxItems": MAX_ITEMS}
                        },
                    },
                ]
            },
            "examples": {
                "one": {"value": {"type": "url", "data": {"url": "https://example.com/help"}}},
                "many": {
                    "value": {
                        "items": [
                            {"type": "note", "content": "The key is under the mat."},
                            {"type": "sitemap", "url": "https://example.com/sitemap.xml"},
                        ]
                    }
                },
            },
        },
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["files"],
                "properties": {
                    "files": {"type": "array", "items": {"type": "string", "format": "binary"}, "maxItems": MAX_FILES},
                    "groupName": {
                        "type": "string",
                        "description": "The name of the files' folder: they become `directory` items.",
                    },
                },
            }
        },
    },
}


@router.post(
    "/knowledge-bases/{base_id}/items",
    status_code=202,
    dependencies=[*writer, *spender],
    openapi_extra={"requestBody": _SCHEMA},
    responses={
        201: {"model": Report, "description": "With `wait`: all added items are completed or failed."},
        202: {"description": "Some or all items are added and wait; `failed` names the others with their reasons."},
        **documented(404, 409, 415, 507),
    },
)
async def add_items(request: Request, response: Response, caller: ByCaller, base_id: HexId, wait: Wait = 0) -> Any:
    """Add the valid sources to a base as items at the end of its queue. The answer names the refused sources.

    Send JSON: an item, a list of items, or `{"items": […]}`, of types `url`, `sitemap` and `note`. Or send files as
    `multipart/form-data`, up to 500 at once; with `groupName`, as the files of a folder. A source that the base already
    has is refused as `duplicate`, with its item. If no source is valid, the answer is a problem with `failed`.
    """
    base = await run_sync(knowledge.base.by, caller, base_id)
    if is_upload(request.headers):
        async with uploads.receive(request, MAX_FILES) as form:
            files, folder = uploads.of_folder(form)
            added = await run_sync(knowledge.add_uploads.by, caller, base.id, files, folder)
    else:
        sources, refused = await turns(request).read(request, await request.body(), _read)
        added = await run_sync(knowledge.add.by, caller, base.id, sources) if sources else Added()
        added.failed += refused
    if not added.created:
        return _nothing(added)
    ids = [view.id for view in added.created]
    if wait:
        tally = await wait_for(caller, lambda: knowledge.tally.by(caller, base.id, ids), lambda now: not now.open, wait)
        shown = _report(added).model_copy(update={"created": await run_sync(_now, caller, ids)})
        response.status_code = 202 if tally.open else 201
    else:
        shown = _report(added)
    place = f"{ITEMS}/{ids[0]}" if len(ids) == 1 else f"{BASES}/{base.id}/items"
    response.headers["Location"] = here(request, place)
    if response.status_code != 201:
        response.headers["Retry-After"] = str(RETRY_S)
    return shown


def _report(added: Added) -> Report:
    return Report(created=[shown_item(view) for view in added.created], failed=added.failed, warnings=added.warnings)


def _now(caller: Caller, ids: list[str]) -> list[Any]:
    items = []
    for item_id in ids:
        with suppress(UnknownItem):  # the item was deleted during the wait
            items.append(shown_item(knowledge.item.by(caller, item_id)))
    return items


def _read(body: bytes) -> tuple[list[Source], list[Refused]]:
    """Return (sources to add, refused sources). Raises `RequestValidationError` for a body of another shape, `Refused`
    for one with too many parts or not in UTF-8."""
    try:
        content = BODY.validate_json(text_of(body))
    except ValidationError as error:
        raise RequestValidationError([{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors()]) from None
    items = content.items if isinstance(content, NewItems) else content if isinstance(content, list) else [content]
    sources: list[Source] = []
    refused: list[Refused] = []
    for item in items:
        fields = item.data or item
        label = str(fields.name or fields.path or "")[:200]
        if item.type in {ItemType.FILE, ItemType.DIRECTORY} or fields.path or fields.file:
            refused.append(Refused(label, _UPLOAD, "upload"))
        elif item.type is ItemType.NOTE:
            sources.append(Source(item.type, text=fields.content or "", name=fields.name or ""))
        else:
            sources.append(Source(item.type, url=fields.url or "", name=fields.name or ""))
    return sources, refused


def _nothing(added: Added) -> Response:
    """Return the problem that says why no source was added, with the fields of a `Report`."""
    codes = {failure.code for failure in added.failed}
    code = codes.pop() if len(codes) == 1 else "nothing_added"
    status = STATUS.get(code, 422)
    first = added.failed[0]
    detail = f"{first.path}: {first.error}" if first.path and not first.error.startswith(first.path) else first.error
    more = f" (and {len(added.failed) - 1:,} others)" if len(added.failed) > 1 else ""
    problem = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail + more, code=code)
    content = {**problem.model_dump(exclude_none=True), **_report(added).model_dump(mode="json", by_alias=True)}
    headers = {"Retry-After": str(RETRY_S)} if status in {429, 503} else {}
    return JSONResponse(content, status, headers, media_type=MEDIA_TYPE)
