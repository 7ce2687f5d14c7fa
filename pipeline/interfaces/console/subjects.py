"""Where in the console something stands that a call or an event is about."""

from urllib.parse import quote

from pipeline.engine.traces import SEARCH

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
    "knowledge_item": "/console/knowledge/items/{}",
}


def place(kind: str, subject: str) -> str:
    """The address of what an event is about, without the prefix; empty for what has no page."""
    return _PLACES[kind].format(quote(subject, safe="")) if subject and kind in _PLACES else ""


def place_of_call(flow: str, scope_id: str, unit: str) -> str:
    """The address of what a call was made for: of the page, where it is known; empty for searches."""
    found = place(_OF_FLOW.get(flow, ""), "" if scope_id == SEARCH else scope_id)
    return f"{found}?page={unit}" if found and flow == "documents" and unit.isdecimal() else found
