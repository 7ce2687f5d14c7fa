"""Addresses of the console's pages about the subject of a call, an event or a hit."""

from urllib.parse import quote, urlencode

from pipeline.engine.traces import SEARCH, TRIAL
from pipeline.operations.search import Hit

_OF_FLOW = {
    "documents": "document",
    "music": "music_run",
    "screenshots": "screenshot_batch",
    "knowledge": "knowledge_item",
}
_PLACES = {
    "document": "/console/documents/{}",
    "music_run": "/console/music/runs/{}",
    "screenshot_batch": "/console/screenshots/batches/{}",
    "screenshot_node": "/console/screenshots/nodes/{}",
    "knowledge_item": "/console/knowledge/items/{}",
}


def place(kind: str, subject: str) -> str:
    """Return the address of the console's page of a subject, without the prefix; empty for an empty id or a kind
    without a page. `kind`: such as `document`; `subject`: its id."""
    return _PLACES[kind].format(quote(subject, safe="")) if subject and kind in _PLACES else ""


def place_of_call(flow: str, scope_id: str, unit: str) -> str:
    """Return the address of the console's page of a call's subject, without the prefix; of a document, at its page
    `unit`. Empty for searches, trials of providers, and flows without such pages."""
    address = place(_OF_FLOW.get(flow, ""), "" if scope_id in {SEARCH, TRIAL} else scope_id)
    return f"{address}?page={unit}" if address and flow == "documents" and unit.isdecimal() else address


def place_of_hit(hit: Hit, words: str = "") -> str:
    """Return the address of the console's page of a hit, without the prefix. Pages of documents and knowledge items
    also mark `words`, the words of the search."""
    marked = {"q": words[:500]} if words else {}
    match hit.flow:
        case "documents":
            return f"{place('document', hit.subject)}?{urlencode({'page': hit.number, **marked})}"
        case "knowledge":
            query = urlencode({"at": hit.number, **marked})
            return f"{place('knowledge_item', hit.subject)}?{query}#chunk-{hit.number}"
        case "screenshots":
            return place("screenshot_node", hit.subject)
