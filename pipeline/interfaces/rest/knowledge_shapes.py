"""Knowledge bases, items and chunks as the API shows them: in the words of source 003, with what we add to them."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

from tasks.knowledge import (
    Activity,
    Added,
    BaseView,
    CancelStatus,
    ChunkView,
    FlowStatus,
    Found,
    Hit,
    ItemStatus,
    ItemType,
    ItemView,
    QueueStatus,
    Refused,
    Standing,
)

NAMES: ConfigDict = {"alias_generator": to_camel, "populate_by_name": True, "from_attributes": True}


class Shape(BaseModel):
    """Names are in camelCase, as in the source."""

    model_config = NAMES


class BaseShape(Shape):
    """A knowledge base."""

    id: str = Field(examples=["0123456789abcdef"])
    name: str = Field(examples=["manuals"])
    description: str
    provider: str = Field(description="Who makes the vectors of items read from now on; `local`: lexical ones.")
    model: str
    chunk_tokens: int
    chunk_overlap: int
    deleting: bool
    items: dict[str, int] = Field(description="How many are in which state.", examples=[{"completed": 12, "failed": 1}])
    created_at: datetime
    updated_at: datetime


def base_shape(view: BaseView, items: dict[str, int]) -> BaseShape:
    return BaseShape(**vars(view), items=items)


class StandingShape(Shape):
    """What an open item is doing just now."""

    item_id: str
    activity: Activity = Field(
        description="in_line: it waits for room; queued: its next step waits for a worker or a gate; running; waiting: "
        "it is tried again later; stalled: nobody is at it."
    )
    place: int | None = Field(description="In its base's line, from 1, if it is in line.")
    reason: str = Field(description="Why it waits, if that is known.")


def standing_shape(found: Standing) -> StandingShape:
    return StandingShape.model_validate(found)


class ItemShape(Shape):
    """An item. While it is being deleted, there is no progress."""

    id: str = Field(examples=["89abcdef01234567"])
    base_id: str
    type: ItemType
    status: ItemStatus
    error: str | None
    warning: str | None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    progress: int | None = Field(
        description="0 to 100; 100 once it is completed, the last one if it failed. Null while it is being deleted, or "
        "with `includeProgress=false`."
    )
    deleting: bool
    name: str
    title: str = Field(description="What its text calls itself.")
    group_id: str | None = Field(description="Of the folder that it is of.")
    group_name: str | None
    size_bytes: int
    workload: int
    chunk_count: int = Field(description="Chunks that are searched.")
    searchable: bool = Field(description="Also while it is read again.")
    data: dict[str, JsonValue] = Field(
        description="What it is made of, by its type.", examples=[{"file": {"name": "manual.pdf", "size": 123456}}]
    )
    standing: StandingShape | None = Field(
        default=None, description="With `includeStanding=true`, of an open item: what it is doing just now."
    )


def item_shape(view: ItemView, *, progress: bool = True, standing: Standing | None = None) -> ItemShape:
    """An item. That it is being deleted goes before all else."""
    shown = {
        "data": _data(view),
        "searchable": view.generation > 0,
        "progress": view.progress if progress and not view.deleting else None,
        "standing": standing and standing_shape(standing),
    }
    return ItemShape(**{name: shown[name] if name in shown else getattr(view, name) for name in _ITEM})


_ITEM = tuple(ItemShape.model_fields)


def _data(view: ItemView) -> dict[str, Any]:
    file: dict[str, Any] = {"file": {"name": view.name, "size": view.size_bytes}}
    match view.type:
        case ItemType.FILE:
            return file
        case ItemType.DIRECTORY:
            return {"groupId": view.group_id, "groupName": view.group_name, **file}
        case ItemType.NOTE:
            return {"name": view.name}
        case _:
            return {"url": view.url, "name": view.name}


class RefusedShape(Shape):
    """What was not added, and why."""

    path: str = Field(description="What it was called: the file's name, the address, the beginning of the note.")
    error: str
    code: str = Field(description="For programs, such as duplicate, queue_full, too_large, empty, bad_url.")
    item_id: str | None = Field(description="It is in the base already, as this item.")


class AddedShape(Shape):
    """What became of a batch: some may be added although others cannot."""

    created: list[ItemShape]
    failed: list[RefusedShape]
    warnings: list[str] = Field(description="Of what was added but will take long.")


def added_shape(added: Added) -> AddedShape:
    return AddedShape(
        created=[item_shape(view) for view in added.created],
        failed=[refused_shape(one) for one in added.failed],
        warnings=added.warnings,
    )


def refused_shape(refused: Refused) -> RefusedShape:
    return RefusedShape.model_validate(refused)


class QueueShape(Shape):
    """A base's queue, as rows, leases and messages say."""

    base_id: str
    queue_size: int = Field(description="Items in line.")
    processing_count: int = Field(description="Items under way.")
    active_item_ids: list[str]
    orphan_item_ids: list[str] = Field(
        description="Nobody is at them, and no message is on its way. Workers that run see to them by themselves."
    )


def queue_shape(found: QueueStatus) -> QueueShape:
    return QueueShape.model_validate(found)


class FlowShape(Shape):
    """The queues of all bases."""

    queue_size: int
    processing_count: int
    per_base_queue: dict[str, int] = Field(description="Items in line, by base.")


def flow_shape(found: FlowStatus) -> FlowShape:
    return FlowShape.model_validate(found)


class CancelShape(Shape):
    """Whether it was stopped; `ignored`: it had ended already."""

    status: CancelStatus


class RecoveredShape(Shape):
    """Orphans that were sent on their way."""

    recovered: list[str]


class DismissedShape(Shape):
    """Orphans that were given up."""

    dismissed: list[str]


class ChunkShape(Shape):
    """A piece of an item's text: characters `start` to before `end` of it."""

    id: int
    number: int
    text: str
    heading: list[str] = Field(description="The headings above it, outermost first.")
    page: int | None
    source: str | None = Field(description="The address of a sitemap's page.")
    start: int
    end: int
    tokens: int = Field(description="As chunks are measured; the base says how many they may have.")


def chunk_shape(view: ChunkView) -> ChunkShape:
    return ChunkShape(
        **{name: getattr(view, name) for name in ChunkShape.model_fields if name != "heading"},
        heading=list(view.heading),
    )


class TextShape(Shape):
    """A part of an item's text: characters `start` to before `end` of it."""

    text: str = Field(description="That of its chunks, without what they repeat of each other.")
    start: int
    end: int
    total: int = Field(description="Characters that it has.")


class HitShape(Shape):
    """A chunk that was found, with the place that it has in its item."""

    chunk_id: int
    item_id: str
    base_id: str
    base_name: str
    title: str
    type: ItemType
    source: str
    group_id: str | None
    group_name: str | None
    heading: list[str]
    page: int | None
    number: int
    start: int
    end: int
    text: str
    excerpt: str
    score: float = Field(description="1: the first by words and by vectors.")
    similarity: float | None = Field(description="Cosine; comparable within one model only.")
    text_rank: int | None
    vector_rank: int | None
    before: list[str]
    after: list[str]


class FoundShape(Shape):
    """Hits, best first."""

    hits: list[HitShape]
    lexical: bool = Field(description="Some vectors are local ones, which know words but not meaning.")
    note: str = Field(description="Why vectors of some model were left out; empty if none were.")


def found_shape(found: Found) -> FoundShape:
    return FoundShape(hits=[_hit(hit) for hit in found.hits], lexical=found.lexical, note=found.note)


def _hit(hit: Hit) -> HitShape:
    lists = {name: list(getattr(hit, name)) for name in ("heading", "before", "after")}
    return HitShape(**{**vars(hit), **lists})
