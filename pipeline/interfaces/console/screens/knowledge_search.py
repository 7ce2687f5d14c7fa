"""A playground for searches in knowledge bases: hits, their ranks, and their places.

A search that calls a provider costs money, so it is a POST, and its answer is kept for "back"; others are a GET.
"""

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel, Field, StringConstraints
from starlette.responses import Response

from pipeline.flows.knowledge.states import ItemType
from pipeline.flows.knowledge.views import Hits
from pipeline.interfaces.console import addresses
from pipeline.interfaces.console.fields import BLANK
from pipeline.interfaces.console.kept import kept
from pipeline.interfaces.console.page import HEADERS, screen
from pipeline.interfaces.console.page_text import marked
from pipeline.interfaces.console.words import combined
from pipeline.interfaces.http.dependencies import ByCaller, reader
from pipeline.interfaces.http.fields import CLEAN, HexId, Id
from pipeline.operations import knowledge
from pipeline.operations.caller import Caller

router = APIRouter(prefix="/console/knowledge", include_in_schema=False, dependencies=reader)


class Question(BaseModel):
    """The query and options of a search."""

    q: Annotated[str, StringConstraints(max_length=4000, strip_whitespace=True), CLEAN] = ""
    base: Annotated[list[HexId], Field(max_length=1000)] = []
    type: Annotated[list[ItemType], Field(max_length=10)] = []
    limit: int = Field(default=10, ge=1, le=200)
    threshold: Annotated[Annotated[float, Field(ge=0, le=1)] | None, BLANK] = None
    around: int = Field(default=0, ge=0, le=5)
    meaning: bool = True

    def query(self) -> dict[str, Any]:
        """Return the search as the query of an address, without empty values."""
        return combined({**self.model_dump(mode="json"), "meaning": "true" if self.meaning else "false"}, {})


class KeptQuestion(Question):
    """A search whose answer may be kept."""

    kept: Annotated[Id | None, BLANK] = None


def _paid(question: Question) -> list[str]:
    """Return the models that this search calls, as `provider:model`, even if their calls are free; empty if it calls
    none. Raises `UnknownBase`."""
    return knowledge.asks(question.base or None) if question.meaning and question.q else []


def _search(caller: Caller, question: Question) -> Hits:
    return knowledge.search.by(
        caller,
        question.base or None,
        question.q,
        limit=question.limit,
        types=question.type or None,
        min_score=question.threshold,
        around=question.around,
        by_meaning=question.meaning,
    )


@router.get("/search")
def show(request: Request, caller: ByCaller, question: Annotated[KeptQuestion, Query()]) -> HTMLResponse:
    """Show the form with the hits of its query. A search that calls a model shows only hits that `ask` kept."""
    paid = _paid(question)
    hits: Hits | None = kept(request).get(caller.id, question.kept) if question.kept else None
    if hits is None and question.q and not paid:
        hits = _search(caller, question)
    bases = [base for base in knowledge.bases() if not base.deleting]
    return screen(
        request,
        "knowledge/search.html",
        question=question,
        result=hits,
        paid=paid,
        bases=bases,
        types=list(ItemType),
        marked=marked,
        may_be_paid=bool(bases) and bool(knowledge.asks(None)),
    )


@router.post("/search")
def ask(request: Request, caller: ByCaller, question: Annotated[Question, Form()]) -> Response:
    """Redirect to the page of the hits. A search that calls a model runs here, and its hits are kept for that page; any
    other runs there."""
    query = question.query()
    if _paid(question):
        query["kept"] = kept(request).put(caller.id, _search(caller, question))
    to = addresses.url(f"/console/knowledge/search?{urlencode(query, doseq=True)}")
    return RedirectResponse(to, 303, dict(HEADERS))
