"""`search` and `fetch` with one string each, as ChatGPT's connectors and deep research require."""

from collections.abc import Callable
from typing import Annotated

from pydantic import BaseModel, Field, JsonValue, StringConstraints

from pipeline.interfaces.http.fields import CLEAN_LINES
from pipeline.interfaces.http.places import place, place_of_hit
from pipeline.interfaces.mcp.tool import Arguments, Call, Toolbox
from pipeline.operations import documents, knowledge, screenshots
from pipeline.operations.refusal import Refused
from pipeline.operations.search import Hit
from pipeline.operations.search import search as everything

BOX = Toolbox()
MAX_CHARS = 100_000
"""Limit for the text that `fetch` returns."""


class Query(Arguments):
    """The words to search."""

    query: Annotated[str, StringConstraints(min_length=1, max_length=500), CLEAN_LINES] = Field(
        description="Words, or a question."
    )


class Result(BaseModel):
    """A hit."""

    id: str = Field(description="The id to fetch.")
    title: str
    url: str = Field(description="The address for people.")


class Results(BaseModel):
    """Hits, best first."""

    results: list[Result]


class Address(Arguments):
    """The text to read."""

    id: Annotated[str, StringConstraints(min_length=1, max_length=120, pattern=r"^[a-z]+:[A-Za-z0-9:]+$")] = Field(
        description="The id of a result of search."
    )


class Text(BaseModel):
    """A result in full."""

    id: str
    title: str
    text: str
    url: str
    metadata: dict[str, JsonValue]


@BOX.tool("Search everything", spends=True)
def search(call: Call, arguments: Query) -> Results:
    """Search pages of converted documents, knowledge bases and screenshots. Read hits with fetch."""
    return Results(results=[_result(call, hit) for hit in everything.by(call.caller, arguments.query).hits])


def _result(call: Call, hit: Hit) -> Result:
    key = {
        "documents": f"page:{hit.subject}:{hit.number}",
        "knowledge": f"chunk:{hit.subject}:{hit.number}",
        "screenshots": f"node:{hit.subject}",
    }[hit.flow]
    return Result(id=key, title=hit.title, url=hit.address or _url(call, place_of_hit(hit)))


@BOX.tool("Read a hit in full")
def fetch(call: Call, arguments: Address) -> Text:
    """Read a result of search in full: a page of a document or the whole document, a passage of a knowledge base with
    its surroundings, or an activity on the screen."""
    kind, _, rest = arguments.id.partition(":")
    if kind not in _KINDS:
        raise _unknown(arguments.id)
    title, text, url, metadata = _KINDS[kind](call, arguments.id, rest)
    if len(text) > MAX_CHARS:
        text, metadata = text[:MAX_CHARS], metadata | {"cut_off_at": MAX_CHARS, "total_characters": len(text)}
    return Text(id=arguments.id, title=title, text=text, url=url, metadata=metadata)


Fetched = tuple[str, str, str, dict[str, JsonValue]]
"""(title, text, address, metadata)."""


def _page(call: Call, hit_id: str, rest: str) -> Fetched:
    document_id, _, number = rest.partition(":")
    page, document = documents.page(document_id, _number(hit_id, number)), documents.status(document_id)
    about: dict[str, JsonValue] = {
        "document_id": document_id,
        "page": page.page,
        "pages": document.pages,
        "status": page.status.name,
    }
    url = _url(call, f"{place('document', document_id)}?page={page.page}")
    return f"{document.filename}, page {page.page}", page.content, url, about


def _document(call: Call, _: str, rest: str) -> Fetched:
    document = documents.status(rest)
    about: dict[str, JsonValue] = {"document_id": rest, "pages": document.pages, "status": document.status.name}
    return document.filename, document.read_text(), _url(call, place("document", rest)), about


def _item(call: Call, _: str, rest: str) -> Fetched:
    item, read = knowledge.item(rest), knowledge.text(rest, limit=MAX_CHARS)
    if not read.text:
        raise Refused(f"item {rest} has no text: it is {item.status}", code="no_result")
    about: dict[str, JsonValue] = {"item_id": rest, "type": item.type, "total_characters": read.total}
    return item.title or item.name, read.text, _source(call, item.url or "", rest), about


def _chunk(call: Call, hit_id: str, rest: str) -> Fetched:
    item_id, _, number = rest.partition(":")
    first = max(0, _number(hit_id, number) - 1)
    item, chunks = knowledge.item(item_id), knowledge.chunks(item_id, first=first, limit=3)
    if not chunks:
        raise _unknown(hit_id)
    about: dict[str, JsonValue] = {"item_id": item_id, "type": item.type, "chunks": [chunk.number for chunk in chunks]}
    text = "\n\n".join(chunk.text for chunk in chunks)
    return item.title or item.name, text, _source(call, chunks[0].source or item.url or "", item_id), about


def _node(call: Call, hit_id: str, rest: str) -> Fetched:
    node = screenshots.show(_number(hit_id, rest)).node
    about: dict[str, JsonValue] = {
        "kind": node.kind,
        "at": node.event_time.isoformat(),
        "keywords": list(node.keywords),
        "thread": node.thread_id,
    }
    return node.title, node.summary, _url(call, place("screenshot_node", str(node.id))), about


_KINDS: dict[str, Callable[[Call, str, str], Fetched]] = {
    "page": _page,
    "document": _document,
    "chunk": _chunk,
    "item": _item,
    "node": _node,
}


def _number(hit_id: str, text: str) -> int:
    if not (text.isdecimal() and text.isascii() and len(text) <= 15):
        raise _unknown(hit_id)
    return int(text)


def _unknown(hit_id: str) -> Refused:
    return Refused(f"no result has the id {hit_id}: use an id that search returned", code="not_found")


def _url(call: Call, path: str) -> str:
    """The address of a page of the console."""
    return f"{call.base_url}{path}"


def _source(call: Call, source: str, item_id: str) -> str:
    """The address of a text's source: its own, or the item's page in the console."""
    own = source.startswith(("http://", "https://"))
    return source if own else _url(call, place("knowledge_item", item_id))
