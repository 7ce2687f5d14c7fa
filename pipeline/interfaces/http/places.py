"""Where in the console something stands that a call, an event or a hit is about."""

from urllib.parse import quote, urlencode

from pipeline.engine.traces import SEARCH
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
    """The address of what an event is about, without the prefix; empty for what has no page."""
    return _PLACES[kind].format(quote(subject, safe="")) if subject and kind in _PLACES else ""


def place_of_call(flow: str, scope_id: str, unit: str) -> str:
    """The address of what a call was made for: of the page, where it is known; empty for searches."""
    found = place(_OF_FLOW.get(flow, ""), "" if scope_id == SEARCH else scope_id)
    return f"{found}?page={unit}" if found and flow == "documents" and unit.isdecimal() else found


def place_of_hit(hit: Hit, words: str = "") -> str:
    """The address of what a search found, with its words marked where the page can do so."""
    match hit.flow:
        case "documents":
            return f"{place('document', hit.subject)}?{urlencode({'page': hit.number, **_sought(words)})}"
        case "knowledge":
            found = urlencode({"at": hit.number, **_sought(words)})
            return f"{place('knowledge_item', hit.subject)}?{found}#chunk-{hit.number}"
        case "screenshots":
            return place("screenshot_node", hit.subject)


def _sought(words: str) -> dict[str, str]:
    return {"q": words[:500]} if words else {}
