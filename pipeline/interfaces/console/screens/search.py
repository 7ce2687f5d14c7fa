"""The header's search: documents, knowledge bases and screenshots at once, without a call to a provider."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from pipeline.interfaces.console.page import screen
from pipeline.interfaces.console.page_text import marked
from pipeline.interfaces.http.dependencies import ByCaller, reader
from pipeline.interfaces.http.fields import Line
from pipeline.interfaces.http.places import place_of_hit
from pipeline.operations.search import search as everything

router = APIRouter(prefix="/console/search", include_in_schema=False, dependencies=reader)
EACH = 20
_SHOWN = {"documents": "Documents", "knowledge": "Knowledge", "screenshots": "Screenshots"}


@router.get("")
def show(request: Request, caller: ByCaller, q: Line = "") -> HTMLResponse:
    """Show the hits of `q` in documents, knowledge bases and screenshots, without a call to a provider."""
    words = q.strip()
    result = everything.by(caller, words, each=EACH, by_meaning=False) if words else None
    hits = result.hits if result else []
    groups = [(flow, name, [hit for hit in hits if hit.flow == flow]) for flow, name in _SHOWN.items()]
    return screen(request, "search/index.html", q=words, groups=groups, marked=marked, place_of=place_of_hit, each=EACH)
