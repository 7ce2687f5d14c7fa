"""`/api/v1/status` and `/api/v1/workers`: how everything stands, and who works."""

from datetime import datetime

from fastapi import APIRouter
from pydantic import Field

from pipeline.interfaces import overview
from pipeline.interfaces.http.dependencies import InContext, reader
from pipeline.interfaces.http.pages import Page
from pipeline.interfaces.http.shapes import Shape, example
from pipeline.operations.refusal import Refused

router = APIRouter(tags=["status"], dependencies=reader)


class LastHourShape(Shape):
    """Attempts of the documents flow in the last hour."""

    finished: int
    failed: int
    failure_rate: float = Field(description="0 to 1.")
    per_minute: float = Field(description="Pages, in the time with work.")
    mean_ms: float


class MinuteShape(Shape):
    """A minute of the last hour."""

    begins: datetime
    finished: int = Field(description="Attempts at pages that ended, the failed ones included.")
    failed: int


class ReasonShape(Shape):
    """Why units wait."""

    kind: str = Field(
        description="`operator`, `spend`, `breaker`, `limits`, `capacity`: a queue is closed or full. `retry`: after a "
        "failure. `turn`. `paused`: what they belong to. `worker`: there is none. `free`: all workers are busy. "
        "`offline`: Redis is down. `unserved`: their provider is not configured any more."
    )
    words: str
    until: datetime | None = Field(description="When the first of them goes on, if anybody knows.")
    queue: str = Field(description="The one that is closed or full; else empty.")
    units: dict[str, int] = Field(description="How many wait, by what they are.")
    count: int = Field(description="All of them.")


class FailureShape(Shape):
    """Something that failed, until somebody does something about it."""

    flow: str
    kind: str = Field(description="As in events: `document`, `song_batch`, `knowledge_item`.")
    id: str
    name: str
    words: str = Field(description="What went wrong.")
    at: datetime


class FleetShape(Shape):
    """What runs."""

    queues: dict[str, int] = Field(description="Messages that wait, by queue.")
    workers: int = Field(description="How many live.")
    closed: list[str] = Field(description="Gates that let nothing through, in words.")
    last_sweep_s: float | None = Field(description="How long ago the sweeper went round; null if that is not known.")
    sweep_problem: str = Field(description="Why what lost workers held does not move again; empty if it does.")


class SpendingShape(Shape):
    """What a provider's calls cost since its day began."""

    provider: str
    today: float = Field(description="By its price list.")
    cap: float = Field(description="At which its queues close until the day ends; 0: none.")
    resets_at: datetime = Field(description="When its day ends.")


class StatusShape(Shape):
    """How everything stands."""

    model_config = example(
        counted={
            "documents": {"documents": {"COMPLETED": 12, "PROCESSING": 1}, "pages": {"COMPLETED": 240, "PENDING": 8}}
        },
        last_hour={"finished": 240, "failed": 2, "failure_rate": 0.0083, "per_minute": 31.5, "mean_ms": 1450.0},
        fleet={
            "queues": {"cpu": 1, "vision.openai": 7},
            "workers": 3,
            "closed": ["vision.openai is paused by an operator (maintenance)"],
            "last_sweep_s": 4.2,
            "sweep_problem": "",
        },
        spending=[{"provider": "openai", "today": 0.4127, "cap": 5.0, "resets_at": "2026-11-23T08:30:00Z"}],
        waiting=[
            {
                "kind": "limits",
                "words": "openai: 500/min is used up",
                "until": "2026-11-22T10:00:07Z",
                "queue": "vision.openai",
                "units": {"pages": 412},
                "count": 412,
            }
        ],
        minutes=[{"begins": "2026-11-22T09:59:00Z", "finished": 31, "failed": 0}],
        failures=[
            {
                "flow": "documents",
                "kind": "document",
                "id": "5f0c1b9e5f0c1b9e",
                "name": "report.pdf",
                "words": "1 of 7 pages failed: the model's answer was cut off",
                "at": "2026-11-22T09:41:00Z",
            }
        ],
    )
    counted: dict[str, dict[str, dict[str, int]]] = Field(
        description="Flow → what people follow of it → how many are in which state."
    )
    last_hour: LastHourShape
    fleet: FleetShape | None = Field(description="null: Redis is down, so nothing runs or nobody can tell.")
    spending: list[SpendingShape] = Field(description="What each provider cost today.")
    waiting: list[ReasonShape] = Field(description="Why units of all flows wait; the reason of most of them first.")
    minutes: list[MinuteShape] = Field(description="Pages in each minute of the last hour, the oldest first.")
    failures: list[FailureShape] = Field(description="The newest, of all flows.")


class WorkShape(Shape):
    """What a worker does for one document, run, batch or item."""

    flow: str
    work: str = Field(description="The kind of units: `page`, `shard`, `delivery`.")
    scope: str = Field(description="The id of the document, run, batch or item.")
    units: int = Field(description="How many it has claimed.")


class WorkerShape(Shape):
    """A worker that lives. What is null or empty, it does not say: it is of an earlier version."""

    model_config = example(
        id="cpu@desk:4242:1f09ab",
        name="cpu@desk",
        role="cpu",
        host="desk",
        process=4242,
        since="2026-11-22T08:00:00Z",
        seen_s=1.2,
        slots=4,
        queues=["cpu", "maintenance"],
        busy=1,
        jobs=[{"flow": "documents", "work": "page", "scope": "5f0c1b9e5f0c1b9e", "units": 8}],
    )
    id: str
    name: str = Field(description="Its role, and its host after the @.")
    role: str
    host: str
    process: int
    since: datetime | None
    seen_s: float | None = Field(description="How long ago it said that it lives.")
    slots: int | None = Field(description="Messages that it works on at once.")
    queues: list[str]
    busy: int = Field(description="Messages that hold a claim now.")
    jobs: list[WorkShape]


@router.get("/status")
def show(context: InContext) -> StatusShape:
    """Show every flow's work by state, what waits and why, pages a minute, queues, failures, costs of today."""
    found = overview.overview(context)
    hour, fleet = found.last_hour, found.fleet
    return StatusShape(
        counted=found.counted,
        last_hour=LastHourShape(
            finished=hour.finished,
            failed=hour.failed,
            failure_rate=round(hour.failure_rate, 4),
            per_minute=hour.per_minute,
            mean_ms=hour.mean_ms,
        ),
        fleet=fleet
        and FleetShape(
            queues=fleet.queues,
            workers=len(fleet.workers),
            closed=fleet.closed,
            last_sweep_s=fleet.last_sweep_s,
            sweep_problem=fleet.sweep_problem,
        ),
        spending=[SpendingShape.model_validate(one) for one in found.spending],
        waiting=[ReasonShape.model_validate(one) for one in found.waiting],
        minutes=[MinuteShape.model_validate(one) for one in found.minutes],
        failures=[FailureShape.model_validate(one) for one in found.failures],
    )


@router.get("/workers", name="list_workers")
def workers(context: InContext) -> Page[WorkerShape]:
    """List the running workers. A worker that died stays in the list until its presence expires."""
    fleet = overview.fleet(context)
    if fleet is None:
        raise Refused("Redis is down, so nobody can tell who works", code="offline")
    return Page(items=[WorkerShape.model_validate(worker) for worker in fleet.workers])
