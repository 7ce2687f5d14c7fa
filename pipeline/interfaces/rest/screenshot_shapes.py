"""Frames, batches, sources and dead letters of the screenshots flow as the API shows them: without paths."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from pipeline.flows.screenshots.states import LetterKind, WorkStatus
from pipeline.flows.screenshots.views import DeadLetter
from pipeline.interfaces.http.fields import Strict
from pipeline.interfaces.http.screenshots import LetterId, Pattern
from pipeline.interfaces.http.shapes import Shape, example

MOST_AT_ONCE = 500
"""Dead letters that one request names."""


class TakenShape(Shape):
    """What became of a frame."""

    model_config = example(outcome="accepted", id=40, status="pending", distance=31, nearest_id=39, threshold=10)
    outcome: str = Field(description="`accepted`, `known`, `duplicate`, `excluded` or `inactive` (its source is off).")
    id: int | None = Field(description="The frame, if it is kept.")
    status: WorkStatus | None = Field(description="How its analysis stands.")
    distance: int | None = Field(description="How many of 256 bits differ from the nearest frame.")
    nearest_id: int | None
    threshold: int | None = Field(description="Up to how many bits count as the same.")


class ScreenshotShape(Shape):
    """A frame."""

    model_config = example(
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
    vlm_attempts: int = Field(description="How often its analysis was begun.")
    vlm_next_run_at: datetime | None = Field(description="When it is tried again, after an attempt that failed.")
    error: str | None
    batch_id: int | None = Field(description="null: it waits for a batch.")
    ocr_text: str | None
    ui_text_snippets: list[str]
    detected_entities: list[str]
    app_guess: str
    app_guess_confidence: float | None = Field(description="From 0 to 1.")
    sha256: str
    phash: str
    size_bytes: int
    storage_state: str = Field(description="`stored`, `deleted` (after its retention time) or `missing`.")
    retention_expires_at: datetime | None
    created_at: datetime


class Size(StrEnum):
    """How large a picture is to be."""

    SMALL = "small"
    LARGE = "large"


class WordPlaceShape(Shape):
    """A word that was looked for. Its sides: shares of the frame's, 0 to 1, from the top left."""

    text: str
    left: float
    top: float
    right: float
    bottom: float


class TextLineShape(Shape):
    """A line of text on a frame. Its sides: shares of the frame's, 0 to 1, from the top left."""

    model_config = example(
        text="Invoice 17",
        left=0.1,
        top=0.2,
        right=0.3,
        bottom=0.23,
        words=[{"text": "Invoice", "left": 0.1, "top": 0.2, "right": 0.23, "bottom": 0.23}],
    )
    text: str
    left: float
    top: float
    right: float
    bottom: float
    words: list[WordPlaceShape] = Field(description="Where words of `q` stand; within a line, this is an estimate.")


class ExclusionsShape(Shape):
    """Patterns, in any case: frames of such programs and window titles are never stored."""

    model_config = example(apps=["Signal"], titles=["*private browsing*"], fixed_apps=["*KeePass*"], fixed_titles=[])
    apps: list[str]
    titles: list[str]
    fixed_apps: list[str] = Field(description="Those of the settings, which hold as well.")
    fixed_titles: list[str]


class ExclusionsChange(Strict):
    """What is excluded from now on, beside what the settings exclude. null: as before."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"apps": ["Signal", "*bank*"]}]})
    apps: Annotated[list[Pattern], Field(max_length=200)] | None = None
    titles: Annotated[list[Pattern], Field(max_length=200)] | None = None


class RetryShape(Shape):
    """Work whose last attempt failed and that will be tried again."""

    kind: str
    count: int
    next_in_s: float
    reason: str


class CaptureShape(Shape):
    """What workers with a display capture by themselves."""

    sources: list[str]
    every_s: float
    last_s: float | None = Field(description="Seconds since a worker tried.")
    worker: str
    missing: list[str] = Field(description="Sources that were not there then, such as windows that are closed.")
    error: str = Field(description="Why nothing could be captured.")


class ScreenshotStatusShape(Shape):
    """How the flow stands. Each of the first four: how many by state."""

    model_config = example(
        screenshots={"succeeded": 40},
        batches={"succeeded": 8},
        merges={"succeeded": 12},
        vectors={"succeeded": 12},
        buffered=2,
        next_batch_in_s=21.5,
        oldest_waiting_s=None,
        pressure=0,
        rejected={"duplicate": 31},
        retries=[],
        dead_letters={},
        made_by={"model": 12},
        closed=[],
        notes=[],
        is_worker_running=True,
        capture=None,
    )
    screenshots: dict[str, int]
    batches: dict[str, int]
    merges: dict[str, int]
    vectors: dict[str, int]
    buffered: int = Field(description="Frames that wait for a batch.")
    next_batch_in_s: float | None
    oldest_waiting_s: float | None = Field(description="Age of the oldest batch that has not been begun.")
    pressure: int = Field(description="0 none, 1 wider threshold for duplicates, 2 longer batches too.")
    rejected: dict[str, int]
    retries: list[RetryShape]
    dead_letters: dict[str, int]
    made_by: dict[str, int]
    closed: list[str] = Field(description="Gates that keep work waiting, in words.")
    notes: list[str]
    is_worker_running: bool
    capture: CaptureShape | None = Field(description="None if nothing is captured by itself.")


class ScreenshotBatchShape(Shape):
    """Frames that are analysed together."""

    model_config = example(
        id=4,
        correlation_id="…",
        source_key="screen:0",
        shot_ids=[38, 39, 40],
        ts_start="2026-11-22T10:00:00Z",
        ts_end="2026-11-22T10:00:20Z",
        status="succeeded",
        step="expand",
        attempts=1,
        total_attempts=1,
        next_run_at=None,
        error=None,
        made_by="model",
        notes=[],
        vlm_ms=2100,
        text_ms=1400,
        run_ms=3600,
        created_at="2026-11-22T10:00:21Z",
        started_at="2026-11-22T10:00:22Z",
        finished_at="2026-11-22T10:00:26Z",
    )
    id: int
    correlation_id: str
    source_key: str
    shot_ids: list[int]
    ts_start: datetime
    ts_end: datetime
    status: WorkStatus
    step: str
    attempts: int = Field(description="Of its step.")
    total_attempts: int = Field(description="Over both steps and replays.")
    next_run_at: datetime | None
    error: str | None
    made_by: str
    notes: list[str]
    vlm_ms: int
    text_ms: int
    run_ms: int = Field(description="From its begin to its end, without waits between attempts.")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class RejectionShape(Shape):
    """A frame that was not accepted, and why."""

    model_config = example(
        id=31,
        source_key="screen:0",
        ts="2026-11-22T10:00:05Z",
        reason="duplicate",
        detail="",
        distance=4,
        threshold=10,
        nearest_id=40,
        sha256="9f86d0…",
        created_at="2026-11-22T10:00:06Z",
    )
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


class SourceShape(Shape):
    """A screen or window."""

    model_config = example(
        key="screen:0",
        active=True,
        pressure=0,
        created_at="2026-11-22T09:00:00Z",
        seen_at="2026-11-22T10:00:05Z",
        frames=40,
        rejected=31,
    )
    key: str
    active: bool
    pressure: int
    created_at: datetime
    seen_at: datetime
    frames: int
    rejected: int


class SourceSwitch(Strict):
    """Whether frames of a source are taken."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"active": False}]})
    active: bool


class DeadLetterShape(BaseModel):
    """Work that was given up: its id names its kind, too."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "batch:4",
                    "kind": "batch",
                    "reason": "no such model",
                    "attempts": 1,
                    "at": "2026-11-22T10:00:26Z",
                }
            ]
        }
    )
    id: str = Field(description="`batch:4`; merges and vectors are named by their nodes.")
    kind: LetterKind
    reason: str
    attempts: int
    at: datetime

    @classmethod
    def of(cls, one: DeadLetter) -> "DeadLetterShape":
        """A dead letter as it is shown."""
        kind = LetterKind(one.kind)
        return cls(id=f"{kind}:{one.id}", kind=kind, reason=one.reason, attempts=one.attempts, at=one.at)


class DeadLetterFilter(Strict):
    """The same as the list's."""

    kind: LetterKind | None = None


class DeadLetterSelection(Strict):
    """Which dead letters: either `ids`, or a `filter` (none: all) with `all_matching`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"filter": {"kind": "batch"}, "all_matching": True}]})
    ids: Annotated[list[LetterId], Field(max_length=MOST_AT_ONCE)] | None = None
    filter: DeadLetterFilter = Field(default_factory=DeadLetterFilter)
    all_matching: bool = Field(default=False, description="Must be true to act on all that match.")

    @model_validator(mode="after")
    def _one_of_both(self) -> "DeadLetterSelection":
        if (self.ids is None) is not self.all_matching:
            raise ValueError("give ids, or a filter with all_matching: true")
        return self


class ExtentShape(Shape):
    """What lies in a range of time, and would be deleted with it."""

    model_config = example(
        screenshots=12, nodes=3, rejections=8, first_at="2026-11-22T10:00:00Z", last_at="2026-11-22T10:59:55Z"
    )
    screenshots: int
    nodes: int = Field(description="Those that rest on a frame of it.")
    rejections: int
    first_at: datetime | None
    last_at: datetime | None


class ForgottenShape(Shape):
    """How much was deleted."""

    model_config = example(screenshots=12, nodes=3, restored=1)
    screenshots: int
    nodes: int
    restored: int = Field(description="Nodes that say again what they said before their merges.")
