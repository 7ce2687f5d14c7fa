"""Resources: documents, their pages and pictures, and items of knowledge bases, as clients attach them to a chat.

Each is a text of `fetch` or a picture of `get_page_image`.
"""

import base64
import re
from datetime import datetime

from anyio.to_thread import run_sync
from mcp_types import (
    BlobResourceContents,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextResourceContents,
)

from pipeline.flows.documents.catalog import Filter
from pipeline.flows.documents.states import DocumentStatus
from pipeline.interfaces.http.pages import decode, encode
from pipeline.interfaces.mcp.tool import Call
from pipeline.interfaces.mcp.tools.connector import Address, fetch
from pipeline.interfaces.mcp.tools.pages import WhichPicture, get_page_image
from pipeline.operations import documents, knowledge
from pipeline.operations.refusal import Refused

_LISTED = 100
_COMPLETED = 100
"""The most values of a completion, by the protocol."""
_TEXT, _PICTURE = "text/markdown", "image/png"
_WITH_TEXT = frozenset({DocumentStatus.COMPLETED, DocumentStatus.PARTIAL_FAILED})
_TEMPLATES = [
    ResourceTemplate(uri_template=f"penstock://{path}", name=name, description=about, mime_type=mime)
    for path, name, about, mime in (
        ("documents/{document_id}", "document", "The Markdown of a converted document.", _TEXT),
        ("documents/{document_id}/pages/{page}", "page", "The Markdown of one of its pages, from 1.", _TEXT),
        ("documents/{document_id}/pages/{page}/picture", "page_picture", "That page as a picture.", _PICTURE),
        ("items/{item_id}", "item", "The text of an item of a knowledge base.", _TEXT),
    )
]
_URI = re.compile(
    r"penstock://(?:items/(?P<item>[0-9a-f]{1,32})"
    r"|documents/(?P<document>[0-9a-f]{1,32})(?:/pages/(?P<page>[0-9]{1,6})(?P<picture>/picture)?)?)"
)


def uri_of(document_id: str, page: int | None = None) -> str:
    """The address of a document or one of its pages."""
    return f"penstock://documents/{document_id}" + ("" if page is None else f"/pages/{page}")


def listed(cursor: str | None) -> ListResourcesResult:
    """A page of the converted documents, newest first. Raises `Refused` for a wrong cursor. Blocks."""
    after = decode(cursor, datetime, str)
    which = Filter(statuses=_WITH_TEXT)
    found = documents.list_documents(which=which, limit=_LISTED + 1, after=(after[0], after[1]) if after else None)
    last = found[_LISTED - 1] if len(found) > _LISTED else None
    return ListResourcesResult(
        resources=[
            Resource(
                uri=uri_of(document.id),
                name=document.filename,
                description=f"Converted document of {document.pages} pages",
                mime_type=_TEXT,
            )
            for document in found[:_LISTED]
        ],
        next_cursor=encode(last.created_at, last.id) if last else None,
    )


def templates() -> ListResourceTemplatesResult:
    return ListResourceTemplatesResult(resource_templates=_TEMPLATES)


async def read(call: Call, uri: str) -> ReadResourceResult:
    """The resource at this address. Raises `Refused`, code `not_found`, for an unknown one, and the errors of `fetch`
    and `get_page_image`."""
    parts = _URI.fullmatch(uri)
    if parts is None:
        raise Refused("no resource has this address: resources and their templates are listed", code="not_found")
    item, document, page, picture = parts.group("item", "document", "page", "picture")
    if picture:
        shown = await get_page_image(call, WhichPicture(document_id=document, page=max(1, int(page))))
        blob = base64.b64encode(shown.png).decode()
        return ReadResourceResult(contents=[BlobResourceContents(uri=uri, mime_type=_PICTURE, blob=blob)])
    key = f"item:{item}" if item else f"page:{document}:{page}" if page else f"document:{document}"
    text = await run_sync(fetch, call, Address(id=key))
    content = TextResourceContents(uri=uri, mime_type=_TEXT, text=text.text, _meta=dict(text.metadata))
    return ReadResourceResult(contents=[content])


def completed(name: str, value: str, given: dict[str, str]) -> tuple[list[str], bool]:
    """Return (values for the argument `name` that begin with `value`, or whose document's or item's name has it;
    whether there are more). `given`: the other arguments. Blocks."""
    match name:
        case "document_id":
            by_name = documents.list_documents(which=Filter(statuses=_WITH_TEXT, name=value), limit=_COMPLETED + 1)
            newest = documents.list_documents(which=Filter(statuses=_WITH_TEXT), limit=1_000) if value else []
            found = [*by_name, *(document for document in newest if document.id.startswith(value))]
            values = list(dict.fromkeys(document.id for document in found))
        case "page" if given.get("document_id"):
            known = documents.several([given["document_id"]])
            numbers = map(str, range(1, (known[0].pages or 0) + 1 if known else 1))
            values = [number for number in numbers if number.startswith(value)]
        case "item_id":
            items = (knowledge.items(base.id, words=value, limit=_COMPLETED + 1) for base in knowledge.bases())
            values = [item.id for of_base in items for item in of_base]
        case _:
            values = []
    return values[:_COMPLETED], len(values) > _COMPLETED
