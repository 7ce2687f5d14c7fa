"""What is shown of bases, items and chunks: frozen copies of rows, which HTTP interfaces answer with as they are."""

import json
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, JsonValue, computed_field
from pydantic.alias_generators import to_camel

from pipeline.engine.views import view_of
from pipeline.engine.wire import HIDDEN, VIEW
from pipeline.flows.knowledge.states import OPEN, ItemStatus, ItemType

CAMEL = ConfigDict(**VIEW, alias_generator=to_camel, populate_by_name=True)
"""Names on the wire are in camelCase, as in docs/sources/knowledge.md#endpoints."""


def heading_of(stored: str) -> tuple[str, ...]:
    """The headings above a chunk, outermost first."""
    return tuple(json.loads(stored))


@dataclass(frozen=True)
class BaseView:
    """A knowledge base."""

    __pydantic_config__ = CAMEL
    id: Annotated[str, Field(examples=["0123456789abcdef"])]
    name: Annotated[str, Field(examples=["manuals"])]
    description: str
    provider: str
    """Who makes the vectors of items read from now on; `local`: lexical ones."""
    model: str
    chunk_tokens: int
    chunk_overlap: int
    deleting: bool
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class CountedBase(BaseView):
    """A knowledge base."""

    items: Annotated[dict[str, int], Field(examples=[{"completed": 12, "failed": 1}])] = field(default_factory=dict)
    """How many are in which state."""


class Activity(StrEnum):
    """What an open item is doing just now."""

    IN_LINE = "in_line"
    """It waits until there is room for it."""
    QUEUED = "queued"
    """It has begun, and its next step waits for a worker or a gate."""
    RUNNING = "running"
    WAITING = "waiting"
    """Its next step is tried again later."""
    STALLED = "stalled"
    """It has neither a worker nor a message: an orphan, until the sweeper or an operator recovers it."""


@dataclass(frozen=True)
class Standing:
    """What an open item is doing just now."""

    __pydantic_config__ = CAMEL
    item_id: str
    activity: Activity
    """in_line: it waits for room; queued: its next step waits for a worker or a gate; running; waiting: it is tried
    again later; stalled: it has no worker."""
    place: int | None = None
    """In its base's line, from 1, if it is in line."""
    reason: str = ""
    """Why it waits, if that is known."""


@dataclass(frozen=True)
class ItemView:
    """An item. Interfaces show it as a `ShownItem`."""

    __pydantic_config__ = CAMEL
    id: str
    base_id: str
    position: Annotated[int, HIDDEN]
    """In the base's line."""
    type: ItemType
    status: ItemStatus
    name: str
    title: str
    """What its text calls itself."""
    url: Annotated[str | None, HIDDEN]
    group_id: str | None
    """Of the folder that it is of."""
    group_name: str | None
    size_bytes: int
    workload: int
    progress: int
    """0 to 100."""
    generation: Annotated[int, HIDDEN]
    """0 until it can be searched for the first time."""
    published_space: Annotated[str, HIDDEN]
    chunk_count: int
    """Chunks that are searched."""
    error: str | None
    warning: str | None
    deleting: bool
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def at_rest(self) -> bool:
        """Completed or failed."""
        return self.status in {ItemStatus.COMPLETED, ItemStatus.FAILED}


@dataclass(frozen=True)
class ShownItem(ItemView):
    """An item. Its deletion shows no progress."""

    progress: int | None  # type: ignore[assignment]  # deletion goes before all else
    """0 to 100; 100 once it is completed, the last one if it failed. Null while it is being deleted, or with
    `includeProgress=false`."""
    standing: Standing | None = None
    """With `includeStanding=true`: the current step of an open item."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def searchable(self) -> bool:
        """Also while it is read again."""
        return self.generation > 0

    @computed_field(examples=[{"file": {"name": "manual.pdf", "size": 123456}}])  # type: ignore[prop-decorator]
    @property
    def data(self) -> dict[str, JsonValue]:
        """Its source, by its type."""
        file: dict[str, JsonValue] = {"file": {"name": self.name, "size": self.size_bytes}}
        match self.type:
            case ItemType.FILE:
                return file
            case ItemType.DIRECTORY:
                return {"groupId": self.group_id, "groupName": self.group_name, **file}
            case ItemType.NOTE:
                return {"name": self.name}
            case _:
                return {"url": self.url, "name": self.name}


def shown_item(view: ItemView, *, progress: bool = True, standing: Standing | None = None) -> ShownItem:
    """An item as interfaces show it."""
    percent = view.progress if progress and not view.deleting else None
    return view_of(ShownItem, view, progress=percent, standing=standing)


@dataclass(frozen=True)
class ChunkView:
    """A piece of an item's text: characters `start` to before `end` of it."""

    __pydantic_config__ = CAMEL
    id: int
    item_id: Annotated[str, HIDDEN]
    number: int
    text: str
    heading: tuple[str, ...]
    """The headings above it, outermost first."""
    page: int | None
    source: str | None
    """The address of a sitemap's page."""
    start: int
    end: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def tokens(self) -> int:
        """As chunks are measured; the base says how many they may have."""
        from pipeline.reading.text.chunks import count_tokens  # noqa: PLC0415  # takes a while, and few ask

        return count_tokens(self.text)


@dataclass(frozen=True)
class TextView:
    """A part of an item's text: characters `start` to before `end` of it."""

    __pydantic_config__ = CAMEL
    text: str
    """The text of its chunks, without their overlaps."""
    start: int
    end: int
    total: int
    """Characters that it has."""


@dataclass(frozen=True)
class Original:
    """The stored copy of what an item was made of. `name`: what its owner calls it."""

    path: Path
    name: str


@dataclass(frozen=True)
class Tally:
    """How far some items of a base are: how many are in which state, and their `progress` together, 0 to 100."""

    states: dict[str, int]
    progress: int

    @property
    def total(self) -> int:
        return sum(self.states.values())

    @property
    def open(self) -> int:
        return sum(self.states.get(state, 0) for state in OPEN)


@dataclass(frozen=True)
class QueueStatus:
    """A base's queue, as rows, leases and messages say. Rules: docs/sources/knowledge.md#orphans."""

    __pydantic_config__ = CAMEL
    base_id: str
    queue_size: int
    """Items in line."""
    processing_count: int
    """Items under way."""
    active_item_ids: list[str]
    orphan_item_ids: list[str]
    """They have neither a worker nor a message. Running workers recover them."""


@dataclass(frozen=True)
class FlowStatus:
    """The queues of all bases."""

    __pydantic_config__ = CAMEL
    queue_size: int
    processing_count: int
    per_base_queue: dict[str, int]
    """Items in line, by base."""


@dataclass(frozen=True)
class Hit:
    """A chunk that was found: characters `start` to before `end` of its item's text."""

    __pydantic_config__ = CAMEL
    chunk_id: int
    item_id: str
    base_id: str
    base_name: str
    title: str
    type: ItemType
    source: str
    """Its address, or the name of its file or note."""
    group_id: str | None
    group_name: str | None
    heading: tuple[str, ...]
    page: int | None
    number: int
    start: int
    end: int
    text: str
    excerpt: str
    score: float
    """1: the first by words and by vectors, or by the only one of them that found anything; 0.5: the first of one, and
    not in the other."""
    similarity: float | None
    """Cosine; comparable within one model only."""
    text_rank: int | None
    """From 1; null: it was not found that way."""
    vector_rank: int | None
    before: tuple[str, ...]
    """The chunks before it in its item, as many as were asked for; they may repeat some of its text."""
    after: tuple[str, ...]


@dataclass(frozen=True)
class Hits:
    """Hits, best first."""

    __pydantic_config__ = CAMEL
    hits: list[Hit]
    lexical: bool
    """Some vectors are local ones, which know words but not meaning."""
    note: str
    """Why vectors of some model were left out; empty if none were."""
