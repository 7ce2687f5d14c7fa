"""One search over documents, knowledge bases and screenshots: of MCP, `penstock search` and the console's header."""

from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Literal

from tasks import documents, knowledge, screenshots

EACH = 8
"""Hits of documents, of knowledge and of screenshots, unless the caller says otherwise."""


@dataclass(frozen=True)
class Hit:
    """A hit of one flow. `subject` and `number` identify a document and its page, an item and its chunk, or a node."""

    flow: Literal["documents", "knowledge", "screenshots"]
    subject: str
    number: int
    title: str
    excerpt: str
    address: str = ""
    """The address of the web page that it comes from."""


@dataclass(frozen=True)
class Found:
    """The best hit of each flow, then the second best, and so on. `notes`: flows searched by words alone, and why."""

    hits: list[Hit]
    notes: list[str]


def search(words: str, *, each: int = EACH, by_meaning: bool = True) -> Found:
    """At most `each` hits of every flow. `by_meaning=False` asks no provider, so it is free. Raises `UserError` for no
    words."""
    pages = documents.search(words, limit=each)
    passages = knowledge.search(None, words, limit=each, by_meaning=by_meaning or not knowledge.asks(None))
    nodes = screenshots.search(words, limit=each, by_meaning=by_meaning)
    lists: list[list[Hit]] = [
        [
            Hit("documents", hit.document_id, hit.page, f"{hit.filename}, page {hit.page}", hit.passage)
            for hit in pages.hits
        ],
        [
            Hit(
                "knowledge",
                hit.item_id,
                hit.number,
                " › ".join([hit.title or hit.source, *hit.heading]),
                hit.excerpt,
                hit.source if hit.source.startswith(("http://", "https://")) else "",
            )
            for hit in passages.hits
        ],
        [
            Hit("screenshots", str(hit.node.id), hit.node.id, hit.node.title, hit.excerpt or hit.node.summary)
            for hit in nodes.hits
        ],
    ]
    # Scores of different flows cannot be compared; their ranks can.
    mixed = [hit for hit in chain.from_iterable(zip_longest(*lists)) if hit is not None]
    return Found(mixed, [note for note in (passages.note, nodes.note) if note])
