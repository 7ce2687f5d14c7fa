"""Dify's external knowledge: its endpoint is this API's address, and its knowledge id a base, by id or by name."""

from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from pipeline.flows.knowledge.queries import UnknownBase
from pipeline.flows.knowledge.search import MAX_LIMIT
from pipeline.flows.knowledge.views import Hit
from pipeline.interfaces.http.dependencies import ByCaller, reader, spender
from pipeline.interfaces.http.fields import Given, Name, Prose
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.operations import knowledge
from pipeline.operations.refusal import Refused

router = APIRouter(tags=["dify"], dependencies=[*reader, *spender], route_class=JsonRoute)
_UNKNOWN_BASE = 2001


class Unknown(BaseModel):
    """Dify's error for an unknown base."""

    error_code: int
    error_msg: str
    detail: str


class RetrievalSetting(BaseModel):
    """Limits of a search. The best score is 1."""

    top_k: int = Field(default=5, ge=1, le=MAX_LIMIT)
    score_threshold: Annotated[float, Field(ge=0, le=1)] | None = None


class Conditions(BaseModel):
    """Conditions on the metadata of records."""

    conditions: Given = False


class Retrieval(BaseModel):
    """Dify's request."""

    knowledge_id: Name = Field(description="A base, by its id or its name.")
    query: Prose
    retrieval_setting: RetrievalSetting = RetrievalSetting()
    metadata_condition: Conditions | None = Field(default=None, description="Not supported: leave it out.")


class Record(BaseModel):
    """A matching chunk."""

    content: str
    score: float
    title: str
    metadata: dict[str, Any]


class Records(BaseModel):
    """Matching chunks, best first."""

    records: list[Record]


@router.post("/retrieval", response_model=Records, responses={404: {"model": Unknown, "description": "Unknown base."}})
def retrieve(caller: ByCaller, retrieval: Retrieval) -> Records | JSONResponse:
    """Search a knowledge base, in the format of Dify's external knowledge."""
    if retrieval.metadata_condition and retrieval.metadata_condition.conditions:
        raise Refused("this server does not support metadata_condition: leave it out", code="unsupported_condition")
    setting = retrieval.retrieval_setting
    try:
        matches = knowledge.search.by(
            caller, retrieval.knowledge_id, retrieval.query, limit=setting.top_k, min_score=setting.score_threshold
        )
    except UnknownBase as error:
        return JSONResponse({"error_code": _UNKNOWN_BASE, "error_msg": str(error), "detail": str(error)}, 404)
    return Records(records=[_record(hit) for hit in matches.hits])


def _record(hit: Hit) -> Record:
    where = {
        "source": hit.source,
        "type": hit.type,
        "heading": " > ".join(hit.heading),
        "page": hit.page,
        "start": hit.start,
        "end": hit.end,
        "item_id": hit.item_id,
        "base_id": hit.base_id,
        "group": hit.group_name,
    }
    known = {name: value for name, value in where.items() if value not in {None, ""}}
    return Record(content=hit.text, score=hit.score, title=hit.title, metadata=known)
