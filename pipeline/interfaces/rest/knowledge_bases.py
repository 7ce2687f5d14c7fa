"""`/knowledge-bases`: bases, their queues, and searches. Rules: docs/sources/knowledge.md#endpoints."""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from pipeline.engine.views import view_of
from pipeline.flows.knowledge.states import ItemType
from pipeline.flows.knowledge.views import CAMEL, BaseView, CountedBase, FlowStatus, Hits, QueueStatus
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, here, reader, writer
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import HexId, Limit, Name, Prose, Search, Strict, Word
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.moments import At
from pipeline.interfaces.http.pages import Cursor, Page
from pipeline.operations import knowledge
from pipeline.operations.caller import Caller

router = APIRouter(tags=["knowledge"], route_class=JsonRoute)
PATH = "/api/v1/knowledge-bases"
UNKNOWN = documented(404)


class Recovered(BaseModel):
    """Orphans that were queued again."""

    recovered: list[str]


class Dismissed(BaseModel):
    """Orphans that were given up."""

    dismissed: list[str]


class BaseOptions(Strict):
    """The name of a base, and the chunks and vectors of items read from now on; null: no change, or the default of the
    settings."""

    model_config = CAMEL
    description: Prose | None = None
    provider: Word | None = Field(default=None, description="A provider of embeddings, or `local`.")
    model: Word | None = None
    chunk_tokens: Annotated[int, Field(ge=32, le=8192)] | None = None
    chunk_overlap: Annotated[int, Field(ge=0, le=8191)] | None = None


class NewBase(BaseOptions):
    """A base to create."""

    name: Name = Field(examples=["manuals"])
    description: Prose = ""


class BaseChanges(BaseOptions):
    """The changes of a base."""

    name: Name | None = None


@router.get("/knowledge-bases", dependencies=reader)
def list_bases(caller: ByCaller, q: Search = None, limit: Limit = 50, cursor: Cursor = None) -> Page[CountedBase]:
    """List all bases by name, including those in deletion."""
    after, counts = pages.decode(cursor, str, str), knowledge.counts.by(caller)
    bases = knowledge.bases.by(caller)
    all_bases = sorted((base for base in bases if (q or "").lower() in base.name.lower()), key=_place)
    rest = [base for base in all_bases if after is None or _place(base) > after]
    return pages.page(rest, limit, lambda base: view_of(CountedBase, base, items=counts.get(base.id, {})), _place)


def _place(base: BaseView) -> tuple[str, str]:
    return base.name, base.id


def _counted(caller: Caller, base: BaseView) -> CountedBase:
    return view_of(CountedBase, base, items=knowledge.tally.by(caller, base.id).states)


@router.post("/knowledge-bases", status_code=201, dependencies=writer, responses=documented(404, 409))
def create_base(request: Request, response: Response, caller: ByCaller, new: NewBase) -> CountedBase:
    """Create an empty base."""
    base = knowledge.create_base.by(caller, **new.model_dump())
    response.headers["Location"] = here(request, f"{PATH}/{base.id}")
    return view_of(CountedBase, base)


@router.get("/knowledge-bases/{base_id}", dependencies=reader, responses=UNKNOWN)
def show_base(caller: ByCaller, base_id: HexId) -> CountedBase:
    """Show a base with the counts of its items by state."""
    base = knowledge.base.by(caller, base_id)
    return _counted(caller, base)


@router.patch("/knowledge-bases/{base_id}", dependencies=writer, responses=documented(404, 409))
def edit_base(caller: ByCaller, base_id: HexId, changes: BaseChanges) -> CountedBase:
    """Change a base. Items in work are not affected; items that another model embedded stay searchable."""
    edited = knowledge.edit_base.by(caller, base_id, **changes.model_dump())
    return _counted(caller, edited)


@router.delete("/knowledge-bases/{base_id}", status_code=202, dependencies=writer, responses=UNKNOWN)
def delete_base(caller: ByCaller, base_id: HexId) -> CountedBase:
    """Delete a base with its items. They show as deleting until everything is removed."""
    counted = _counted(caller, knowledge.base.by(caller, base_id))
    knowledge.delete_base.by(caller, counted.id)
    return replace(counted, deleting=True)


@router.get("/knowledge-bases/{base_id}/queue", dependencies=reader, responses=UNKNOWN)
def show_queue(caller: ByCaller, base_id: HexId) -> QueueStatus:
    """Show a base's queue: waiting items, items in work, and orphans."""
    return knowledge.queue.by(caller, base_id)


@router.post("/knowledge-bases/{base_id}/queue/recover", dependencies=writer, responses=UNKNOWN)
def recover(caller: ByCaller, base_id: HexId) -> Recovered:
    """Queue a base's orphans again. If workers run, the sweep does that within seconds."""
    return Recovered(recovered=knowledge.recover.by(caller, base_id))


class Orphans(Strict):
    """The orphans; null: all."""

    model_config = CAMEL
    item_ids: Annotated[list[HexId], Field(max_length=1000)] | None = None


@router.post("/knowledge-bases/{base_id}/queue/dismiss", dependencies=writer, responses=UNKNOWN)
def dismiss(caller: ByCaller, base_id: HexId, which: Orphans | None = None) -> Dismissed:
    """Give up orphans: they fail with the error `Interrupted`, and can be reprocessed. Other items do not change."""
    return Dismissed(dismissed=knowledge.dismiss.by(caller, base_id, which.item_ids if which else None))


@router.get("/knowledge-queue", dependencies=reader)
def show_queues(caller: ByCaller) -> FlowStatus:
    """Show the queues of all bases: the numbers of waiting items and of items in work."""
    return knowledge.get_status.by(caller)


@router.post("/knowledge-queue/recover", dependencies=writer, responses=UNKNOWN)
def recover_all(
    caller: ByCaller,
    base_id: Annotated[HexId | None, Query(alias="baseId", description="Only orphans of this base.")] = None,
) -> Recovered:
    """Queue the orphans of one base, or of all bases, again: another name for `queue/recover`."""
    bases = knowledge.bases.by(caller) if base_id is None else [knowledge.base.by(caller, base_id)]
    items = [item for base in bases if not base.deleting for item in knowledge.recover.by(caller, base.id)]
    return Recovered(recovered=items)


class Question(Strict):
    """The query of a search, and the filter of items."""

    model_config = ConfigDict(
        **CAMEL, json_schema_extra={"examples": [{"query": "how is the filter changed?", "limit": 5}]}
    )
    query: Annotated[Prose, Field(min_length=1, max_length=4000)]
    limit: int = Field(default=10, ge=1, le=200)
    types: Annotated[list[ItemType], Field(max_length=10)] | None = None
    item_ids: Annotated[list[HexId], Field(max_length=1000)] | None = None
    group_ids: Annotated[list[Word], Field(max_length=1000)] | None = None
    since: At | None = Field(default=None, description="Only items added since then.")
    min_score: float | None = Field(default=None, ge=0, le=1)
    around: int = Field(default=0, ge=0, le=5, description="The number of chunks before and after each hit.")
    by_meaning: bool = Field(default=True, description="False: by words only, without a call to a provider.")


class QuestionToMany(Question):
    """A query over several bases."""

    base_ids: Annotated[list[HexId], Field(min_length=1, max_length=1000)] | None = Field(
        default=None, description="Null: all bases."
    )


@router.post("/knowledge-bases/{base_id}/search", dependencies=reader, responses=UNKNOWN)
def search_base(caller: ByCaller, base_id: HexId, question: Question) -> Hits:
    """Search a base by words and by vectors, fused. If the provider does not answer, by words only: see `note`."""
    return knowledge.search.by(caller, [base_id], question.query, **_options(question))


@router.post("/knowledge-search", dependencies=reader, responses=UNKNOWN)
def search_bases(caller: ByCaller, question: QuestionToMany) -> Hits:
    """Search several bases, or all of them, in one ranking."""
    return knowledge.search.by(caller, question.base_ids, question.query, **_options(question))


def _options(question: Question) -> dict[str, Any]:
    return question.model_dump(exclude={"query", "base_ids"})
