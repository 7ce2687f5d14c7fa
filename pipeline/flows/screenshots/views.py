"""What callers get to see: plain typed objects, detached from the database."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pipeline.flows.screenshots.graph.search import Progress
from pipeline.flows.screenshots.rules.provenance import Call
from pipeline.flows.screenshots.states import NodeKind, Origin, WorkStatus


@dataclass(frozen=True)
class NodeView:
    """Something that was understood. `merged_into_id`: the node that says it now."""

    id: int
    kind: NodeKind
    thread_id: str | None
    title: str
    summary: str
    keywords: list[str]
    entities: list[dict[str, Any]]
    importance: int
    confidence: int
    event_time: datetime
    made_by: Origin
    batch_id: int | None
    status: WorkStatus
    """Of its merge."""
    error: str | None
    merged_into_id: int | None
    merged_from_ids: list[int]
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True)
class ScreenshotView:
    """A frame. `path`: where its file is while it is kept."""

    id: int
    source_key: str
    ts: datetime
    app: str
    window_title: str
    status: WorkStatus
    vlm_attempts: int
    """How often its analysis was begun; `vlm_next_run_at`: when it is tried again."""
    vlm_next_run_at: datetime | None
    error: str | None
    batch_id: int | None
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
    retention_expires_at: datetime | None
    created_at: datetime
    original_path: str = ""
    """Where the file that was added was then; empty for what came as bytes."""
    path: Path | None = None


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
    """A word that was looked for, where it stands on a frame: sides as shares of the frame's, from the top left."""

    text: str
    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class TextLine:
    """A line of text on a frame, its place likewise, and the words in it that were looked for."""

    text: str
    left: float
    top: float
    right: float
    bottom: float
    words: list[WordPlace]


@dataclass(frozen=True)
class Exclusions:
    """Patterns of programs and window titles whose frames are never stored: those that can be changed while everything
    runs, and those of the settings, which hold as well."""

    apps: list[str]
    titles: list[str]
    fixed_apps: list[str]
    fixed_titles: list[str]


@dataclass(frozen=True)
class BatchView:
    """Frames that are analysed together. `made_by`: who made its nodes; empty until there are any.

    `attempts`: of its step; `total_attempts`: over both steps and replays. `run_ms`: without waits between attempts.
    """

    id: int
    correlation_id: str
    source_key: str
    shot_ids: list[int]
    ts_start: datetime
    ts_end: datetime
    status: WorkStatus
    step: str
    attempts: int
    total_attempts: int
    next_run_at: datetime | None
    error: str | None
    made_by: str
    notes: list[str]
    vlm_ms: int
    text_ms: int
    run_ms: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True)
class SourceView:
    """A screen or window. `pressure`: how far analysis was behind when a frame last came, 0 to 2."""

    key: str
    active: bool
    pressure: int
    created_at: datetime
    seen_at: datetime
    frames: int = 0
    rejected: int = 0


@dataclass(frozen=True)
class RejectionView:
    """A frame that was not accepted, and why: bits of 256 that differ from the nearest one, or what was wrong."""

    id: int
    source_key: str
    ts: datetime
    reason: str
    detail: str
    distance: int | None
    threshold: int | None
    nearest_id: int | None
    sha256: str
    created_at: datetime


@dataclass(frozen=True)
class ThreadView:
    """A course of activity."""

    id: str
    title: str
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True)
class EdgeView:
    """How two nodes relate."""

    from_id: int
    to_id: int
    type: str


@dataclass(frozen=True)
class OriginView:
    """How a node came to say what it says: `act` is `made` or `merged`; `method`: by whom."""

    act: str
    from_node_id: int | None
    batch_id: int | None
    method: Origin
    model: str
    created_at: datetime


@dataclass(frozen=True)
class NodeDetail:
    """A node with what it rests on. `asked_id` differs from `node.id` if what was asked for went into it."""

    asked_id: int
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
    """What happened in one hour of one thread, in its order."""

    begins_at: datetime
    thread_id: str | None
    thread_title: str
    nodes: list[NodeView]


@dataclass(frozen=True)
class Extent:
    """What lies in a range of time, and so would be forgotten with it: nodes that rest on a frame of it, too."""

    screenshots: int
    nodes: int
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
class Hit:
    """A node that a search found; ranks are 1-based, None: not found that way."""

    node: NodeView
    score: float
    text_rank: int | None
    vector_rank: int | None
    apps: list[str]
    shot_id: int | None = None
    """A frame on which one of the words was read."""
    excerpt: str = ""
    """The text around it."""
    original_path: str = ""
    """The file that was added as this frame."""


@dataclass(frozen=True)
class Found:
    """Hits, best first, beside how much of everything is indexed.

    `lexical`: no provider of embeddings is configured, so meaning is not known. `note`: why only words were looked
    for, although meaning should have been.
    """

    hits: list[Hit]
    screenshots: Progress
    vectors: Progress
    lexical: bool
    note: str = ""


@dataclass(frozen=True)
class Retry:
    """Work whose last attempt failed and that will be tried again. `kind`: `batch` or `merge`."""

    kind: str
    count: int
    next_in_s: float
    """Until the first of them is due; 0: it only waits for its turn."""
    reason: str
    """The latest."""


@dataclass(frozen=True)
class CaptureView:
    """What workers with a display capture by themselves, and how the latest time went."""

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
