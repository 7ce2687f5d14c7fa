"""`/api/v1/status` and `/api/v1/workers`: how everything stands, and who works."""

from datetime import datetime

from fastapi import APIRouter
from pydantic import Field

from pipeline.interfaces import overview
from pipeline.interfaces.api.dependencies import InContext, reader
from pipeline.interfaces.api.pages import Page
from pipeline.interfaces.api.problems import Refused
from pipeline.interfaces.api.shapes import Shape, example

router = APIRouter(tags=["status"], dependencies=reader)


class LastHourShape(Shape):
    """Attempts of the documents flow in the last hour."""

    finished: int
    failed: int
    failure_rate: float = Field(description="0 to 1.")
    per_minute: float = Field(description="Pages, in the time with work.")
    mean_ms: float


class FleetShape(Shape):
    """What runs."""

    queues: dict[str, int] = Field(description="Messages that wait, by queue.")
    workers: int = Field(description="How many live.")
    closed: list[str] = Field(description="Gates that let nothing through, in words.")
    last_sweep_s: float | None = Field(description="How long ago the sweeper went round; null if that is not known.")


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
            "queues": {"cpu": 1, "vision.openai": 7}, "workers": 3,
            "closed": ["vision.openai is paused by an operator (maintenance)"], "last_sweep_s": 4.2,
        },
        spending=[{"provider": "openai", "today": 0.4127, "cap": 5.0, "resets_at": "2026-11-23T08:30:00Z"}],
    )  # fmt: skip
    counted: dict[str, dict[str, dict[str, int]]] = Field(
        description="Flow → what people follow of it → how many are in which state."
    )
    last_hour: LastHourShape
    fleet: FleetShape | None = Field(description="null: Redis is down, so nothing runs or nobody can tell.")
    spending: list[SpendingShape] = Field(description="What each provider cost today.")


class WorkerShape(Shape):
    """A worker that lives."""

    model_config = example(id="cpu@desk:4242:1f09ab", name="cpu@desk", process=4242)
    id: str
    name: str = Field(description="Its role, and its host after the @.")
    process: int


@router.get("/status")
def show(context: InContext) -> StatusShape:
    """Show every flow's work by state, pages a minute, queues, workers and what providers cost today."""
    found = overview.overview(context)
    hour, fleet = found.last_hour, found.fleet
    return StatusShape(
        counted=found.counted,
        last_hour=LastHourShape(
            finished=hour.finished, failed=hour.failed, failure_rate=round(hour.failure_rate, 4),
            per_minute=hour.per_minute, mean_ms=hour.mean_ms,
        ),
        fleet=fleet
        and FleetShape(
            queues=fleet.queues, workers=len(fleet.workers), closed=fleet.closed, last_sweep_s=fleet.last_sweep_s
        ),
        spending=[SpendingShape.model_validate(one) for one in found.spending],
    )  # fmt: skip


@router.get("/workers", name="list_workers")
def workers(context: InContext) -> Page[WorkerShape]:
    """List the workers that live. One that is gone without a word is listed until its presence has run out."""
    fleet = overview.fleet(context)
    if fleet is None:
        raise Refused("Redis is down, so nobody can tell who works", code="offline")
    return Page(items=[_worker(worker) for worker in fleet.workers])


def _worker(worker_id: str) -> WorkerShape:
    name, _, rest = worker_id.partition(":")
    process = rest.partition(":")[0]
    return WorkerShape(id=worker_id, name=name, process=int(process) if process.isdecimal() else 0)
