"""What is shown of bases, items and chunks."""

import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from pipeline.flows.knowledge.states import OPEN, ItemStatus, ItemType


def heading_of(stored: str) -> tuple[str, ...]:
    """The headings above a chunk, outermost first."""
    return tuple(json.loads(stored))


@dataclass(frozen=True)
class BaseView:
    """A knowledge base. `provider` and `model` make the vectors of what is read from now on."""

    id: str
    name: str
    description: str
    provider: str
    model: str
    chunk_tokens: int
    chunk_overlap: int
    deleting: bool
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class ItemView:
    """An item. `position`: in the base's line. `progress`: 0 to 100. `generation` is 0 until it can be searched for the
    first time."""

    id: str
    base_id: str
    position: int
    type: ItemType
    status: ItemStatus
    name: str
    title: str
    url: str | None
    group_id: str | None
    group_name: str | None
    size_bytes: int
    workload: int
    progress: int
    generation: int
    published_space: str
    chunk_count: int
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
class ChunkView:
    """A piece of an item's text: characters `start` to before `end` of it."""

    id: int
    item_id: str
    number: int
    text: str
    heading: tuple[str, ...]
    page: int | None
    source: str | None
    start: int
    end: int

    @property
    def tokens(self) -> int:
        """How long it is, as chunks are measured."""
        from pipeline.reading.text.chunks import count_tokens  # noqa: PLC0415  # takes a while, and few ask

        return count_tokens(self.text)


@dataclass(frozen=True)
class TextView:
    """A part of an item's text: characters `start` to before `end`, of `total`."""

    text: str
    start: int
    end: int
    total: int


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
    """Nobody is at it, and no message is on its way: an orphan, until the sweeper or somebody recovers it."""


@dataclass(frozen=True)
class Standing:
    """An open item's activity; its `place` in the base's line (from 1), if it is in line; and why it waits."""

    item_id: str
    activity: Activity
    place: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class QueueStatus:
    """A base's queue. Source 003, `getStatus` and "孤儿任务恢复"."""

    base_id: str
    queue_size: int
    """Items in line."""
    processing_count: int
    """Items under way."""
    active_item_ids: list[str]
    orphan_item_ids: list[str]


@dataclass(frozen=True)
class FlowStatus:
    """The queues of all bases."""

    queue_size: int
    processing_count: int
    per_base_queue: dict[str, int]


@dataclass(frozen=True)
class Hit:
    """A chunk that was found: characters `start` to before `end` of its item's text.

    `score`: 1 if it is the first by words and by vectors, or by the only one of them that found anything; 0.5 if it is
    the first of one and not in the other. `similarity` is the cosine, and comparable only within one model. Ranks are
    from 1; None: it was not found that way.
    """

    chunk_id: int
    item_id: str
    base_id: str
    base_name: str
    title: str
    type: ItemType
    source: str
    """Its URL, or the name of its file or note."""
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
    similarity: float | None
    text_rank: int | None
    vector_rank: int | None
    before: tuple[str, ...]
    """The chunks before it in its item, as many as were asked for; they may repeat some of its text."""
    after: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """Hits, best first. `lexical`: some vectors are local ones, which know words but not meaning.

    `note`: why vectors of some model were left out; empty if none were.
    """

    hits: list[Hit]
    lexical: bool
    note: str
