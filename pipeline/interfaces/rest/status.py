"""`/api/v1/status` and `/api/v1/workers`: the state of all flows, and the workers."""

from fastapi import APIRouter

from pipeline.interfaces.http.dependencies import InContext, reader
from pipeline.interfaces.http.pages import Page
from pipeline.operations import overview
from pipeline.operations.overview import Overview
from pipeline.operations.refusal import Refused
from pipeline.operations.workers import Worker

router = APIRouter(tags=["status"], dependencies=reader)


@router.get("/status")
def show(context: InContext) -> Overview:
    """Show every flow's work by state, waiting work and why, pages per minute, queues, failures, today's costs."""
    return overview.overview(context)


@router.get("/workers", name="list_workers")
def workers(context: InContext) -> Page[Worker]:
    """List the running workers. A worker that died stays in the list until its presence expires."""
    fleet = overview.fleet(context)
    if fleet is None:
        raise Refused("Redis is down, so the workers are unknown", code="offline")
    return Page(items=fleet.workers)
