"""The flow's views: plain typed objects, detached from the database."""

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
    """A node of the graph: an event, or knowledge, a state, a procedure or a plan."""

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
    """The state of its merge."""
    error: str | None
    merged_into_id: int | None
    """The node that it was merged into."""
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
    """Number of analyses started."""
    vlm_next_run_at: datetime | None
    """Time of the next attempt, after a failed one."""
    error: str | None
    batch_id: int | None
    """None while it waits for a batch."""
    ocr_text: str | None
    ui_text_snippets: list[str]
    detected_entities: list[str]
    app_guess: str
    app_guess_confidence: float | None
    """The model's confidence, from 0 to 1."""
    sha256: str
    phash: str
    size_bytes: int
    storage_state: str
    """`stored`, `deleted` (by retention) or `missing`."""
    retention_expires_at: datetime | None
    created_at: datetime
    original_path: Annotated[str, HIDDEN] = ""
    """Path of the added file at that time; empty for frames sent as bytes."""
    path: Annotated[Path | None, HIDDEN] = None
    """Path of its file while it is stored."""


@dataclass(frozen=True)
class FrameView:
    """A frame in a list. `kept`: its row says that the picture is stored."""

    id: int
    ts: datetime
    app: str
    window_title: str
    kept: bool


@dataclass(frozen=True)
class NodeFrames:
    """A node's earliest frames in order, and the number of all its frames."""

    total: int
    frames: list[FrameView]


@dataclass(frozen=True)
class WordPlace:
    """The box of a searched word: shares of the frame's sides, 0 to 1, from the top left."""

    __pydantic_config__ = VIEW
    text: str
    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class TextLine:
    """A line of text on a frame and its box: shares of the frame's sides, 0 to 1, from the top left."""

    __pydantic_config__ = VIEW
    text: str
    left: float
    top: float
    right: float
    bottom: float
    words: list[WordPlace]
    """Boxes of the searched words; their places within the line are estimates."""


@dataclass(frozen=True)
class Exclusions:
    """Patterns of programs and window titles, in any case, whose frames Penstock never stores."""

    __pydantic_config__ = VIEW
    apps: list[str]
    titles: list[str]
    fixed_apps: list[str]
    """Patterns of the startup settings, which also apply."""
    fixed_titles: list[str]


@dataclass(frozen=True)
class BatchView:
    """A batch of frames, analysed together."""

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
    """Attempts of its step."""
    total_attempts: int
    """Attempts over both steps and all replays."""
    next_run_at: datetime | None
    error: str | None
    made_by: str
    """Origin of its nodes; empty until it has nodes."""
    notes: list[str]
    vlm_ms: int
    text_ms: int
    run_ms: int
    """Time of its attempts, without waits between them."""
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
    """How far analysis lagged at the latest frame, 0 to 2."""
    created_at: datetime
    seen_at: datetime
    frames: int = 0
    rejected: int = 0


@dataclass(frozen=True)
class RejectionView:
    """A rejected frame and the reason."""

    __pydantic_config__ = VIEW
    id: int
    source_key: str
    ts: datetime
    reason: str
    detail: str
    """The problem of a refused frame."""
    distance: int | None
    """Bits of 256 that differ from the nearest frame."""
    threshold: int | None
    nearest_id: int | None
    sha256: str
    created_at: datetime


@dataclass(frozen=True)
class ThreadView:
    """A thread of activity."""

    __pydantic_config__ = VIEW
    id: str
    title: str
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True)
class EdgeView:
    """A relation between two nodes."""

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
    """A node with its frames, calls, relations and merged nodes."""

    __pydantic_config__ = VIEW
    asked_id: int
    """The requested id. It differs from the node's id if the requested node was merged into this one."""
    node: NodeView
    vector: WorkStatus | None
    """The state of its vector, by which search finds it."""
    vector_error: str | None
    thread: ThreadView | None
    screenshots: list[ScreenshotView]
    provenance: list[OriginView]
    calls: list[Call]
    edges: list[EdgeView]
    merged: list[NodeView]


@dataclass(frozen=True)
class Hour:
    """The nodes of one hour and thread, in time order. A page of the timeline may start in the middle of an hour."""

    __pydantic_config__ = VIEW
    begins_at: datetime
    """In the configured zone."""
    thread_id: str | None
    thread_title: str
    nodes: list[NodeView]


@dataclass(frozen=True)
class Extent:
    """The amount that a deletion of a time range would remove."""

    __pydantic_config__ = VIEW
    screenshots: int
    nodes: int
    """Nodes that rest on its frames."""
    rejections: int
    first_at: datetime | None
    last_at: datetime | None


@dataclass(frozen=True)
class DeadLetter:
    """A dead letter and the reason. `kind`: `batch`, `merge` or `vector`; the last two have the ids of their nodes."""

    kind: str
    id: int
    reason: str
    attempts: int
    at: datetime


@dataclass(frozen=True)
class Progress:
    """Numbers of rows that are done, that wait or are under way, and that failed permanently."""

    done: int
    waiting: int
    failed: int


@dataclass(frozen=True)
class Hit:
    """A hit of a search. Ranks start at 1; None: absent from that list."""

    __pydantic_config__ = VIEW
    node: NodeView
    score: float
    text_rank: int | None
    vector_rank: int | None
    apps: list[str]
    shot_id: int | None = None
    """The latest frame whose text contains one of the words."""
    excerpt: str = ""
    """The text around the word."""
    original_path: Annotated[str, HIDDEN] = ""
    """Path of the file that was added as this frame."""


@dataclass(frozen=True)
class SearchResult:
    """Hits, best first, and how much is indexed."""

    __pydantic_config__ = VIEW
    hits: list[Hit]
    screenshots: Progress
    vectors: Progress
    lexical: bool
    """True if no embeddings provider is configured: the search matches words, not their meaning."""
    note: str = ""
    """Why the search matched words only, although an embeddings provider is configured."""


@dataclass(frozen=True)
class Retry:
    """Failed work that a retry follows. `kind`: `batch` or `merge`."""

    __pydantic_config__ = VIEW
    kind: str
    count: int
    next_in_s: float
    """Seconds until the first of them is due; 0: it only waits for its turn."""
    reason: str
    """The latest reason."""


@dataclass(frozen=True)
class CaptureView:
    """The sources that workers with a display capture, and the latest outcome."""

    __pydantic_config__ = VIEW
    sources: list[str]
    every_s: float
    last_s: float | None
    """Seconds since the latest capture; None without one on record."""
    worker: str
    missing: list[str]
    """Sources that did not exist then, such as closed windows."""
    error: str
    """Why the capture failed."""


@dataclass(frozen=True)
class Status:
    """The status of the flow. The first four fields count rows by state."""

    __pydantic_config__ = VIEW
    screenshots: dict[str, int]
    batches: dict[str, int]
    merges: dict[str, int]
    vectors: dict[str, int]
    buffered: int
    """Frames that wait for a batch."""
    next_batch_in_s: float | None
    oldest_waiting_s: float | None
    """Age of the oldest batch that has not started."""
    pressure: int
    """The highest pressure of all sources: 0 none, 1 a wider threshold, 2 larger batches too."""
    rejected: dict[str, int]
    retries: list[Retry]
    """Failed work that a retry follows."""
    dead_letters: dict[str, int]
    made_by: dict[str, int]
    """Nodes by origin."""
    closed: list[str]
    """Why gates are closed, in words."""
    notes: list[str]
    """Sentences about omissions, corrections and steps without a model."""
    is_worker_running: bool
    capture: CaptureView | None = None
    """None if no source is configured."""
