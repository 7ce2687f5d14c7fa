"""Views of bases, items and chunks: frozen copies of rows, which HTTP interfaces answer with."""

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
from pipeline.flows.knowledge.states import OPEN, ItemStatus, ItemType, Loss

CAMEL = ConfigDict(**VIEW, alias_generator=to_camel, populate_by_name=True)
"""Names on the wire are in camelCase, as in docs/sources/knowledge.md#endpoints."""


def heading_of(stored: str) -> tuple[str, ...]:
    """Parse the stored headings above a chunk, outermost first."""
    return tuple(json.loads(stored))


@dataclass(frozen=True)
class BaseView:
    """A knowledge base."""

    __pydantic_config__ = CAMEL
    id: Annotated[str, Field(examples=["0123456789abcdef"])]
    name: Annotated[str, Field(examples=["manuals"])]
    description: str
    provider: str
    """The provider of vectors for items read from now on; `local`: lexical vectors."""
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
    """The number of items by state."""


class Activity(StrEnum):
    """The current activity of an open item."""

    IN_LINE = "in_line"
    """It waits in line for admission."""
    QUEUED = "queued"
    """It is under way, and its next step waits for a worker or a gate."""
    RUNNING = "running"
    WAITING = "waiting"
    """Its next step waits for a retry."""
    STALLED = "stalled"
    """It is an orphan, without worker and message, until the sweeper or an operator recovers it."""


@dataclass(frozen=True)
class Standing:
    """An open item's current activity, its place in line, and why it waits."""

    __pydantic_config__ = CAMEL
    item_id: str
    activity: Activity
    """in_line: it waits for admission; queued: its next step waits for a worker or a gate; running; waiting: it waits
    for a retry; stalled: it has neither worker nor message."""
    place: int | None = None
    """Its place in its base's line, from 1, while it is in line."""
    reason: str = ""
    """Why it waits, if known."""


@dataclass(frozen=True)
class ItemView:
    """An item. Interfaces show it as a `ShownItem`."""

    __pydantic_config__ = CAMEL
    id: str
    base_id: str
    position: Annotated[int, HIDDEN]
    """Its place in the base's line."""
    type: ItemType
    status: ItemStatus
    name: str
    title: str
    """The title in its text."""
    url: Annotated[str | None, HIDDEN]
    group_id: str | None
    """The group of its folder."""
    group_name: str | None
    size_bytes: int
    workload: int
    progress: int
    """0 to 100."""
    generation: Annotated[int, HIDDEN]
    """0 until its first publication."""
    published_space: Annotated[str, HIDDEN]
    chunk_count: int
    """Searchable chunks."""
    error: str | None
    warning: str | None
    loss: Loss | None
    """`doubtful`: a sitemap lost most of its pages, so its reading failed; a reading with `acceptMissing` goes on."""
    deleting: bool
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def at_rest(self) -> bool:
        """Whether it is completed or failed."""
        return self.status in {ItemStatus.COMPLETED, ItemStatus.FAILED}


@dataclass(frozen=True)
class ShownItem(ItemView):
    """An item as interfaces show it."""

    progress: int | None  # type: ignore[assignment]  # null while it is being deleted
    """0 to 100; 100 for a completed item, the last value for a failed one. Null while it is being deleted, or with
    `includeProgress=false`."""
    standing: Standing | None = None
    """With `includeStanding=true`: the current activity of an open item."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def searchable(self) -> bool:
        """Whether a search finds it, also while it is read again."""
        return self.generation > 0

    @computed_field(examples=[{"file": {"name": "manual.pdf", "size": 123456}}])  # type: ignore[prop-decorator]
    @property
    def data(self) -> dict[str, JsonValue]:
        """Its source, in a form for each type."""
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
    """Return an item as interfaces show it; its progress is None while it is being deleted, or with
    `progress=False`."""
    percent = view.progress if progress and not view.deleting else None
    return view_of(ShownItem, view, progress=percent, standing=standing)


@dataclass(frozen=True)
class ChunkView:
    """A passage of an item's text: its characters `start` to before `end`."""

    __pydantic_config__ = CAMEL
    id: int
    item_id: Annotated[str, HIDDEN]
    number: int
    text: str
    heading: tuple[str, ...]
    """The headings above it, outermost first."""
    page: int | None
    source: str | None
    """The address of the sitemap's page that contains it."""
    start: int
    end: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def tokens(self) -> int:
        """The number of tokens, as the base's limit counts them."""
        from pipeline.reading.text.chunks import count_tokens  # noqa: PLC0415  # slow to import, and rarely needed

        return count_tokens(self.text)


@dataclass(frozen=True)
class TextView:
    """A part of an item's text: its characters `start` to before `end`."""

    __pydantic_config__ = CAMEL
    text: str
    """The text of its chunks, without their overlaps."""
    start: int
    end: int
    total: int
    """Characters of the whole text."""


@dataclass(frozen=True)
class Original:
    """The stored copy of an item's file or note. `name`: the item's name."""

    path: Path
    name: str


@dataclass(frozen=True)
class Tally:
    """Some items of a base: their numbers by state, and their mean `progress`, 0 to 100."""

    states: dict[str, int]
    progress: int

    @property
    def total(self) -> int:
        return sum(self.states.values())

    @property
    def open(self) -> int:
        return sum(self.states.get(state, 0) for state in OPEN)


@dataclass(frozen=True)
class GroupView:
    """A folder of a base, and the tally of its items."""

    id: str
    name: str
    tally: Tally


@dataclass(frozen=True)
class QueueStatus:
    """A base's queue, derived from rows, leases and messages. Rules: docs/sources/knowledge.md#orphans."""

    __pydantic_config__ = CAMEL
    base_id: str
    queue_size: int
    """Items in line."""
    processing_count: int
    """Items under way."""
    active_item_ids: list[str]
    orphan_item_ids: list[str]
    """Items without worker and message. Running workers recover them."""


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
    """A matching chunk: characters `start` to before `end` of its item's text."""

    __pydantic_config__ = CAMEL
    chunk_id: int
    item_id: str
    base_id: str
    base_name: str
    title: str
    type: ItemType
    source: str
    """The item's address, or the name of its file or note."""
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
    """1: first by words and by vectors, or by the only list with hits; 0.5: first in one list, and
    absent from the other."""
    similarity: float | None
    """The cosine, which is comparable only within one model."""
    text_rank: int | None
    """Rank from 1; null: it is not in that list."""
    vector_rank: int | None
    before: tuple[str, ...]
    """The requested number of chunks before it in its item, which may overlap it."""
    after: tuple[str, ...]


@dataclass(frozen=True)
class Hits:
    """Hits, best first."""

    __pydantic_config__ = CAMEL
    hits: list[Hit]
    lexical: bool
    """Some vectors are lexical: they know words but not meaning."""
    note: str
    """Why the search left out vectors of some model; empty if it used all."""
