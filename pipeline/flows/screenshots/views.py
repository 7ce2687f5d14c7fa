"""What callers get to see: plain typed objects, detached from the database."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import JsonValue

from pipeline.engine.wire import HIDDEN, VIEW, example
from pipeline.flows.screenshots.rules.provenance import Call
from pipeline.flows.screenshots.states import NodeKind, Origin, WorkStatus


@dataclass(frozen=True)
class NodeView:
    """Something that was understood."""

    __pydantic_config__ = example(
        id=12,
        kind="event",
        thread_id="thread_4_0",
        title="Invoice for March",
        summary="Checked the sums.",
        keywords=["invoice"],
        entities=[{"name": "ACME"}],
        importance=6,
        confidence=8,
        event_time="2026-11-22T10:00:00Z",
        made_by="model",
        batch_id=4,
        status="succeeded",
        error=None,
        merged_into_id=None,
        merged_from_ids=[],
        created_at="2026-11-22T10:01:00Z",
        updated_at="2026-11-22T10:01:30Z",
    )
    id: int
    kind: NodeKind
    thread_id: str | None
    title: str
    summary: str
    keywords: list[str]
    entities: list[dict[str, JsonValue]]
    importance: int
    confidence: int
    event_time: datetime
    made_by: Origin
    batch_id: int | None
    status: WorkStatus
    """Of its merge."""
    error: str | None
    merged_into_id: int | None
    """The node that says it now."""
    merged_from_ids: list[int]
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class ScreenshotView:
    """A frame."""

    __pydantic_config__ = example(
        id=40,
        source_key="screen:0",
        ts="2026-11-22T10:00:00Z",
        app="Firefox",
        window_title="Invoices",
        status="succeeded",
        vlm_attempts=1,
        vlm_next_run_at=None,
        error=None,
        batch_id=4,
        ocr_text="Invoice 17",
        ui_text_snippets=["Invoice 17"],
        detected_entities=["ACME"],
        app_guess="Firefox",
        app_guess_confidence=0.9,
        sha256="9f86d0…",
        phash="c3a1…",
        size_bytes=181224,
        storage_state="stored",
        retention_expires_at=None,
        created_at="2026-11-22T10:00:01Z",
    )
    id: int
    source_key: str
    ts: datetime
    app: str
    window_title: str
    status: WorkStatus
    vlm_attempts: int
    """How often its analysis was begun."""
    vlm_next_run_at: datetime | None
    """When it is tried again, after an attempt that failed."""
    error: str | None
    batch_id: int | None
    """None: it waits for a batch."""
    ocr_text: str | None
    ui_text_snippets: list[str]
    detected_entities: list[str]
    app_guess: str
    app_guess_confidence: float | None
    """From 0 to 1."""
    sha256: str
    phash: str
    size_bytes: int
    storage_state: str
    """`stored`, `deleted` (after its retention time) or `missing`."""
    retention_expires_at: datetime | None
    created_at: datetime
    original_path: Annotated[str, HIDDEN] = ""
    """Where the file that was added was then; empty for what came as bytes."""
    path: Annotated[Path | None, HIDDEN] = None
    """Where its file is while it is kept."""


@dataclass(frozen=True)
class FrameView:
    """The least that a list tells of a frame. `kept`: its picture is there, as far as is known."""

    id: int
    ts: datetime
    app: str
    window_title: str
    kept: bool


@dataclass(frozen=True)
class NodeFrames:
    """Some of the frames that a node rests on, the earliest first, and how many there are."""

    total: int
    frames: list[FrameView]


@dataclass(frozen=True)
class WordPlace:
    """A word that was looked for. Its sides: shares of the frame's, 0 to 1, from the top left."""

    __pydantic_config__ = VIEW
    text: str
    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class TextLine:
    """A line of text on a frame. Its sides: shares of the frame's, 0 to 1, from the top left."""

    __pydantic_config__ = VIEW
    text: str
    left: float
    top: float
    right: float
    bottom: float
    words: list[WordPlace]
    """Where the words that were looked for stand; within a line, this is an estimate."""


@dataclass(frozen=True)
class Exclusions:
    """Patterns, in any case: frames of such programs and window titles are never stored."""

    __pydantic_config__ = VIEW
    apps: list[str]
    titles: list[str]
    fixed_apps: list[str]
    """Those of the settings, which hold as well."""
    fixed_titles: list[str]


@dataclass(frozen=True)
class BatchView:
    """Frames that are analysed together."""

    __pydantic_config__ = VIEW
    id: int
    correlation_id: str
    source_key: str
    shot_ids: list[int]
    ts_start: datetime
    ts_end: datetime
    status: WorkStatus
    step: str
    attempts: int
    """Of its step."""
    total_attempts: int
    """Over both steps and replays."""
    next_run_at: datetime | None
    error: str | None
    made_by: str
    """Who made its nodes; empty until there are any."""
    notes: list[str]
    vlm_ms: int
    text_ms: int
    run_ms: int
    """Time of its attempts, without the waits between them."""
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True)
class SourceView:
    """A screen or window."""

    __pydantic_config__ = VIEW
    key: str
    active: bool
    pressure: int
    """How far analysis was behind when a frame last came, 0 to 2."""
    created_at: datetime
    seen_at: datetime
    frames: int = 0
    rejected: int = 0


@dataclass(frozen=True)
class RejectionView:
    """A frame that was not accepted, and why."""

    __pydantic_config__ = VIEW
    id: int
    source_key: str
    ts: datetime
    reason: str
    detail: str
    """What was wrong with it."""
    distance: int | None
    """How many of 256 bits differ from the nearest frame."""
    threshold: int | None
    nearest_id: int | None
    sha256: str
    created_at: datetime


@dataclass(frozen=True)
class ThreadView:
    """A course of activity."""

    __pydantic_config__ = VIEW
    id: str
    title: str
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True)
class EdgeView:
    """How two nodes relate."""

    __pydantic_config__ = VIEW
    from_id: int
    to_id: int
    type: str


@dataclass(frozen=True)
class OriginView:
    """The calls behind a node's text."""

    __pydantic_config__ = VIEW
    act: str
    """`made` or `merged`."""
    from_node_id: int | None
    batch_id: int | None
    method: Origin
    model: str
    created_at: datetime


@dataclass(frozen=True)
class NodeDetail:
    """A node with its sources."""

    __pydantic_config__ = VIEW
    asked_id: int
    """Differs from the node's id if what was asked for went into it."""
    node: NodeView
    vector: WorkStatus | None
    """Of its vector, by which it is found."""
    vector_error: str | None
    thread: ThreadView | None
    screenshots: list[ScreenshotView]
    provenance: list[OriginView]
    calls: list[Call]
    edges: list[EdgeView]
    merged: list[NodeView]


@dataclass(frozen=True)
class Hour:
    """What happened in one hour of one thread, in its order. A page of the timeline may begin in the middle of one."""

    __pydantic_config__ = VIEW
    begins_at: datetime
    """In the configured zone."""
    thread_id: str | None
    thread_title: str
    nodes: list[NodeView]


@dataclass(frozen=True)
class Extent:
    """What lies in a range of time, and would be deleted with it."""

    __pydantic_config__ = VIEW
    screenshots: int
    nodes: int
    """Those that rest on a frame of it."""
    rejections: int
    first_at: datetime | None
    last_at: datetime | None


@dataclass(frozen=True)
class DeadLetter:
    """Work that was given up, and why. `kind`: `batch`, `merge` or `vector`; the last two named by their nodes."""

    kind: str
    id: int
    reason: str
    attempts: int
    at: datetime


@dataclass(frozen=True)
class Progress:
    """How many are done, how many wait or are under way, and how many failed for good."""

    done: int
    waiting: int
    failed: int


@dataclass(frozen=True)
class Hit:
    """A node that a search found; ranks are from 1, None: not found that way."""

    __pydantic_config__ = VIEW
    node: NodeView
    score: float
    text_rank: int | None
    vector_rank: int | None
    apps: list[str]
    shot_id: int | None = None
    """A frame on which one of the words was read."""
    excerpt: str = ""
    """The text around it."""
    original_path: Annotated[str, HIDDEN] = ""
    """The file that was added as this frame."""


@dataclass(frozen=True)
class Found:
    """Hits, best first, beside how much is indexed."""

    __pydantic_config__ = VIEW
    hits: list[Hit]
    screenshots: Progress
    vectors: Progress
    lexical: bool
    """No provider of embeddings is configured, so meaning is not known."""
    note: str = ""
    """Why only words were looked for, although meaning should have been."""


@dataclass(frozen=True)
class Retry:
    """Work whose last attempt failed and that will be tried again. `kind`: `batch` or `merge`."""

    __pydantic_config__ = VIEW
    kind: str
    count: int
    next_in_s: float
    """Until the first of them is due; 0: it only waits for its turn."""
    reason: str
    """The latest."""


@dataclass(frozen=True)
class CaptureView:
    """What workers with a display capture by themselves, and how the latest time went."""

    __pydantic_config__ = VIEW
    sources: list[str]
    every_s: float
    last_s: float | None
    """Seconds since a worker tried; None if none has, or that is forgotten."""
    worker: str
    missing: list[str]
    """Sources that were not there then, such as windows that are closed."""
    error: str
    """Why nothing could be captured."""


@dataclass(frozen=True)
class Status:
    """How the flow stands. Each of the first four: how many by state."""

    __pydantic_config__ = VIEW
    screenshots: dict[str, int]
    batches: dict[str, int]
    merges: dict[str, int]
    vectors: dict[str, int]
    buffered: int
    """Frames that wait for a batch."""
    next_batch_in_s: float | None
    oldest_waiting_s: float | None
    """Age of the oldest batch that has not been begun."""
    pressure: int
    """Of the source that is most behind: 0 none, 1 wider threshold, 2 longer batches too."""
    rejected: dict[str, int]
    retries: list[Retry]
    """What failed and is not given up."""
    dead_letters: dict[str, int]
    made_by: dict[str, int]
    """Nodes by who made them."""
    closed: list[str]
    """Gates that keep work waiting, in words."""
    notes: list[str]
    """What was done without a model, left out or corrected, in words."""
    is_worker_running: bool
    capture: CaptureView | None = None
    """None if workers are to capture nothing."""
