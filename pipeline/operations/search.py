"""One search over documents, knowledge bases and screenshots."""

from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Literal

from pipeline.flows.documents import search as pages
from pipeline.flows.knowledge import search as passages
from pipeline.flows.screenshots import search as nodes
from pipeline.operations.caller import Caller
from pipeline.operations.operation import operation
from pipeline.operations.quotas import SEARCHES
from pipeline.storage.api_keys import Scope

EACH = 8
"""Default limit of hits from each of documents, knowledge and screenshots."""


@dataclass(frozen=True)
class Hit:
    """A hit of one flow. `subject` and `number` identify a document and its page, an item and its chunk, or a node."""

    flow: Literal["documents", "knowledge", "screenshots"]
    subject: str
    number: int
    title: str
    excerpt: str
    address: str = ""
    """The address of the hit's web page."""


@dataclass(frozen=True)
class Hits:
    """The best hit of each flow, then the second best, and so on. `notes`: flows searched by words alone, and why."""

    hits: list[Hit]
    notes: list[str]


@operation(Scope.READ, places=SEARCHES)
def search(caller: Caller, words: str, *, each: int = EACH, by_meaning: bool = True) -> Hits:
    """Search documents, knowledge bases and screenshots, each for at most `each` hits; their hits alternate.
    `by_meaning=False` calls no provider that costs money. Raises `UserError` without words, and `OverCap` for a search
    by meaning, if the caller has spent its cap."""
    context = caller.context
    if by_meaning:
        caller.check_spending()
    from_documents = pages.search(context, words, limit=each)
    from_knowledge = passages.search(
        context, None, words, limit=each, by_meaning=by_meaning or not passages.asks(context, None)
    )
    from_screenshots = nodes.find(context, words, limit=each, by_meaning=by_meaning)
    lists: list[list[Hit]] = [
        [
            Hit("documents", hit.document_id, hit.page, f"{hit.filename}, page {hit.page}", hit.passage)
            for hit in from_documents.hits
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
            for hit in from_knowledge.hits
        ],
        [
            Hit("screenshots", str(hit.node.id), hit.node.id, hit.node.title, hit.excerpt or hit.node.summary)
            for hit in from_screenshots.hits
        ],
    ]
    # Scores of different flows are not comparable; their ranks are.
    mixed = [hit for hit in chain.from_iterable(zip_longest(*lists)) if hit is not None]
    return Hits(mixed, [note for note in (from_knowledge.note, from_screenshots.note) if note])
