"""`/knowledge-bases`: bases, their queues, and search in them. Source 003 names the paths of queues."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import ConfigDict, Field

from pipeline.flows.knowledge.settings import own
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import here, may_spend, reader, writer
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import HexId, Limit, Name, Prose, Search, Strict, Word
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.moments import At
from pipeline.interfaces.http.pages import Cursor, Page
from pipeline.interfaces.rest.knowledge_shapes import (
    NAMES,
    BaseShape,
    DismissedShape,
    FlowShape,
    FoundShape,
    QueueShape,
    RecoveredShape,
    base_shape,
    flow_shape,
    found_shape,
    queue_shape,
)
from pipeline.settings import LOCAL
from tasks import knowledge as flow
from tasks.knowledge import ItemType

router = APIRouter(tags=["knowledge"], route_class=JsonRoute)
PATH = "/api/v1/knowledge-bases"
GONE = documented(404)


class BaseOptions(Strict):
    """How a base is called, and how what is read from now on is chunked and embedded; null: as it is, or as the
    settings say."""

    model_config = NAMES
    description: Prose | None = None
    provider: Word | None = Field(default=None, description="A provider that makes vectors of knowledge, or `local`.")
    model: Word | None = None
    chunk_tokens: Annotated[int, Field(ge=32, le=8192)] | None = None
    chunk_overlap: Annotated[int, Field(ge=0, le=8191)] | None = None


class NewBase(BaseOptions):
    """A base to create."""

    name: Name = Field(examples=["manuals"])
    description: Prose = ""


class BaseChanges(BaseOptions):
    """What to change."""

    name: Name | None = None


@router.get("/knowledge-bases", dependencies=reader)
def list_bases(q: Search = None, limit: Limit = 50, cursor: Cursor = None) -> Page[BaseShape]:
    """List all bases by name, also during their deletion."""
    after, counts = pages.decode(cursor, str, str), flow.counts()
    found = sorted((base for base in flow.bases() if (q or "").lower() in base.name.lower()), key=_place)
    rest = [base for base in found if after is None or _place(base) > after]
    return pages.page(rest, limit, lambda base: base_shape(base, counts.get(base.id, {})), _place)


def _place(base: flow.BaseView) -> tuple[str, str]:
    return base.name, base.id


def _check_model(request: Request, provider: str | None, model: str | None) -> None:
    """Raises `Refused` as `check_model` does; the model that the settings name for knowledge may be named."""
    configured = own(request.app.state.context.settings)
    chosen = provider or configured.embeddings_provider or LOCAL
    if model and (chosen, model) != (configured.embeddings_provider, configured.embeddings_model):
        request.state.caller.check_model(chosen, model)


@router.post("/knowledge-bases", status_code=201, dependencies=writer, responses=documented(404, 409))
def create_base(request: Request, response: Response, new: NewBase) -> BaseShape:
    """Create an empty base."""
    _check_model(request, new.provider, new.model)
    made = flow.create_base(**new.model_dump())
    response.headers["Location"] = here(request, f"{PATH}/{made.id}")
    return base_shape(made, {})


@router.get("/knowledge-bases/{base_id}", dependencies=reader, responses=GONE)
def show_base(base_id: HexId) -> BaseShape:
    """Show one base, with its items by state."""
    found = flow.base(base_id)
    return base_shape(found, flow.tally(found.id).states)


@router.patch("/knowledge-bases/{base_id}", dependencies=writer, responses=documented(404, 409))
def edit_base(request: Request, base_id: HexId, changes: BaseChanges) -> BaseShape:
    """Change a base. Nothing that is under way is disturbed; what another model embedded stays searchable."""
    _check_model(request, changes.provider or flow.base(base_id).provider, changes.model)
    edited = flow.edit_base(base_id, **changes.model_dump(exclude_none=True))
    return base_shape(edited, flow.tally(edited.id).states)


@router.delete("/knowledge-bases/{base_id}", status_code=202, dependencies=writer, responses=GONE)
def delete_base(base_id: HexId) -> BaseShape:
    """Delete a base with all of its items. They are shown as being deleted until nothing of them is left."""
    found = flow.base(base_id)
    states = flow.tally(found.id).states
    flow.delete_base(found.id)
    return base_shape(found, states).model_copy(update={"deleting": True})


@router.get("/knowledge-bases/{base_id}/queue", dependencies=reader, responses=GONE)
def show_queue(base_id: HexId) -> QueueShape:
    """Show a base's queue: what is in line and under way, and orphans."""
    return queue_shape(flow.queue(base_id))


@router.post("/knowledge-bases/{base_id}/queue/recover", dependencies=writer, responses=GONE)
def recover(base_id: HexId) -> RecoveredShape:
    """Continue a base's orphans. If workers run, the sweeper does that within seconds."""
    return RecoveredShape(recovered=flow.recover(base_id))


class Orphans(Strict):
    """Which orphans; null: all of them."""

    model_config = NAMES
    item_ids: Annotated[list[HexId], Field(max_length=1000)] | None = None


@router.post("/knowledge-bases/{base_id}/queue/dismiss", dependencies=writer, responses=GONE)
def dismiss(base_id: HexId, which: Orphans | None = None) -> DismissedShape:
    """Give up orphans: they fail with the error `Interrupted`, and can be reprocessed. Others are left alone."""
    named = which.item_ids if which is not None else None
    ids = flow.queue(base_id).orphan_item_ids if named is None else named
    return DismissedShape(dismissed=flow.dismiss(base_id, ids))


@router.get("/knowledge-queue", dependencies=reader)
def show_queues() -> FlowShape:
    """Show the queues of all bases: `getStatus` of the source."""
    return flow_shape(flow.get_status())


@router.post("/knowledge-queue/recover", dependencies=writer, responses=GONE)
def recover_all(
    base_id: Annotated[HexId | None, Query(alias="baseId", description="Only of this base.")] = None,
) -> RecoveredShape:
    """Send the orphans of one base, or of all, on their way again: another name for `queue/recover`."""
    bases = [base_id] if base_id is not None else [base.id for base in flow.bases() if not base.deleting]
    return RecoveredShape(recovered=[item for one in bases for item in flow.recover(one)])


class Question(Strict):
    """What to look for, and in which items."""

    model_config = ConfigDict(
        **NAMES, json_schema_extra={"examples": [{"query": "how is the filter changed?", "limit": 5}]}
    )
    query: Annotated[Prose, Field(min_length=1, max_length=4000)]
    limit: int = Field(default=10, ge=1, le=200)
    types: Annotated[list[ItemType], Field(max_length=10)] | None = None
    item_ids: Annotated[list[HexId], Field(max_length=1000)] | None = None
    group_ids: Annotated[list[Word], Field(max_length=1000)] | None = None
    since: At | None = Field(default=None, description="Only of items added since then.")
    min_score: float | None = Field(default=None, ge=0, le=1)
    around: int = Field(default=0, ge=0, le=5, description="With so many chunks before and after each.")
    by_meaning: bool = Field(default=True, description="False: by words alone, without a call to a provider.")


class QuestionToMany(Question):
    """The same of several bases."""

    base_ids: Annotated[list[HexId], Field(min_length=1, max_length=1000)] | None = Field(
        default=None, description="Null: all bases."
    )


@router.post("/knowledge-bases/{base_id}/search", dependencies=reader, responses=GONE)
def search_base(request: Request, base_id: HexId, question: Question) -> FoundShape:
    """Search a base by words and by vectors, fused. Where the provider does not answer, by words alone: see `note`."""
    if question.by_meaning:
        may_spend(request)
    return found_shape(flow.search([base_id], question.query, **_options(question)))


@router.post("/knowledge-search", dependencies=reader, responses=GONE)
def search_bases(request: Request, question: QuestionToMany) -> FoundShape:
    """Search several bases, or all of them, in one ranking."""
    if question.by_meaning:
        may_spend(request)
    return found_shape(flow.search(question.base_ids, question.query, **_options(question)))


def _options(question: Question) -> dict[str, Any]:
    return question.model_dump(exclude={"query", "base_ids"})
