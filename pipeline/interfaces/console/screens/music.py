"""Music: the state of the library, runs with their batches, and their actions."""

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field
from starlette.responses import Response

from pipeline.engine.errors import UserError
from pipeline.flows.music.service import StartOptions
from pipeline.flows.music.states import BatchStatus, Mode, PipelineState
from pipeline.flows.music.views import RunView
from pipeline.interfaces.console import live
from pipeline.interfaces.console.answers import done
from pipeline.interfaces.console.fields import BLANK
from pipeline.interfaces.console.page import piece, screen
from pipeline.interfaces.console.words import count, plural
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, reader, spender, writer
from pipeline.interfaces.http.fields import HexId, RowId
from pipeline.interfaces.http.moments import At
from pipeline.interfaces.http.pages import Cursor
from pipeline.operations import music
from pipeline.operations.caller import Caller
from pipeline.operations.events import Filter
from pipeline.storage.context import Context

router = APIRouter(prefix="/console/music", include_in_schema=False, dependencies=reader)
RUNS, BATCHES = 20, 50
"""Rows on a page."""
_CSS = {
    PipelineState.PAUSED: "paused",
    PipelineState.BREAKER: "waiting",
    "completed": "done",
    "stopped": "paused",
    "failed": "failed",
}
BATCH_CSS = {
    BatchStatus.PENDING: "waiting",
    BatchStatus.QUEUED: "waiting",
    BatchStatus.PROCESSING: "working",
    BatchStatus.COMPLETED: "done",
    BatchStatus.FAILED: "failed",
    BatchStatus.CANCELLED: "paused",
}
MaybeBatch = Annotated[BatchStatus | None, BLANK]


class MusicQuery(live.ViewQuery):
    """No fields: there is one library."""


class RunQuery(live.ViewQuery):
    """One run."""

    run: HexId


def _css(run: RunView) -> str:
    return _CSS.get(run.outcome or run.status, "working")


@live.view("music", matches=lambda _: Filter("music"), every_s=10)
def library(context: Context, query: MusicQuery) -> dict[str, str]:  # noqa: ARG001
    """Return HTML by element id: the library's figures, and the active or last run."""
    caller = Caller(context)
    status = music.status.by(caller)
    figures = music.figures.by(caller, status.run.id) if status.run else None
    return {
        "music-figures": piece("music/_figures.html", status=status, settings=context.settings.music),
        "music-run": piece("music/_run.html", status=status, run=status.run, figures=figures, css=_css),
    }


@live.view("music-run", matches=lambda _: Filter("music"), every_s=10)
def one_run(context: Context, query: RunQuery) -> dict[str, str]:
    """Return HTML by element id: a run's figures and its newest batches."""
    caller = Caller(context)
    run, status = music.run.by(caller, query.run), music.status.by(caller)
    run_status = status if status.run and status.run.id == run.id else None
    figures = music.figures.by(caller, run.id)
    return {
        "music-run": piece("music/_run.html", status=run_status, run=run, figures=figures, css=_css),
        "music-batches": _batches(caller, run.id),
    }


def _batches(caller: Caller, run_id: str, status: BatchStatus | None = None, before: int | None = None) -> str:
    rows = music.batches.by(caller, run_id=run_id, status=status, before=before, limit=BATCHES + 1)
    page = pages.views(rows, BATCHES, lambda batch: (batch.id,))
    return piece(
        "music/_batches.html",
        run_id=run_id,
        status=status or "",
        batches=page.items,
        next_cursor=page.next_cursor,
        css=BATCH_CSS,
        now=caller.context.db.now(),
        first=before is None,
    )


@router.get("")
def show(request: Request, caller: ByCaller, cursor: Cursor = None) -> HTMLResponse:
    """Show the state of the library, the active run, and earlier runs."""
    rows = music.runs.by(caller, limit=RUNS + 1, after=pages.decode(cursor, At, str))
    page = pages.views(rows, RUNS, lambda run: (run.created_at, run.id))
    named = caller.context.settings.music
    return screen(
        request,
        "music/index.html",
        fragments=library(caller.context, MusicQuery()),
        runs=page.items,
        next_cursor=page.next_cursor,
        sums=music.sums.by(caller, [run.id for run in page.items]),
        css=_css,
        has_library=bool(named.server_url or named.folder),
    )


@router.get("/runs/{run_id}")
def show_run(
    request: Request,
    caller: ByCaller,
    run_id: HexId,
    status: MaybeBatch = None,
    cursor: Cursor = None,
) -> HTMLResponse:
    """Show a run, its batches, and the reasons of failures."""
    (before,) = pages.decode(cursor, int) or (None,)
    shown = dict(one_run(caller.context, RunQuery(run=run_id)))
    if status or before is not None:
        shown["music-batches"] = _batches(caller, run_id, status, before)
    failed = music.batches.by(caller, run_id=run_id, status=BatchStatus.FAILED, limit=RUNS)
    return screen(
        request,
        "music/run.html",
        run=music.run.by(caller, run_id),
        fragments=shown,
        css=_css,
        chosen=status or "",
        is_live=not status and before is None,
        replies=[batch for batch in failed if batch.reply],
    )


class Options(BaseModel):
    """The options of a run, from the form."""

    mode: Mode = Mode.FULL
    limit: Annotated[Annotated[int, Field(ge=1, le=10_000_000)] | None, BLANK] = None
    skip_sync: bool = False
    failed: bool = False

    def as_options(self) -> StartOptions:
        return StartOptions(self.mode, self.skip_sync, self.limit, self.failed)


@router.get("/start")
def ask(request: Request, caller: ByCaller, options: Annotated[Options, Query()]) -> HTMLResponse:
    """Estimate the work and cost of a run with these options."""
    estimate, refused = None, ""
    try:
        estimate = music.estimate.by(caller, options.as_options())
    except UserError as error:
        refused = str(error)
    return screen(request, "music/start.html", options=options, estimate=estimate, refused=refused, modes=list(Mode))


@router.post("/runs", dependencies=[*writer, *spender])
def start(request: Request, caller: ByCaller, options: Annotated[Options, Form()]) -> Response:
    """Start a run."""
    music.start.by(caller, options.as_options())
    return done(request, "The run has started.", to="/console/music")


@router.post("/pause", dependencies=writer)
def pause(request: Request, caller: ByCaller) -> Response:
    """Let calls in progress finish, and start no others."""
    music.pause.by(caller)
    return done(request, "The run is paused: calls in progress finish, no others start.")


@router.post("/resume", dependencies=[*writer, *spender])
def resume(request: Request, caller: ByCaller) -> Response:
    """Continue the run."""
    music.resume.by(caller)
    return done(request, "The run continues.")


@router.post("/stop", dependencies=writer)
def stop(request: Request, caller: ByCaller) -> Response:
    """End the run. Its unfinished songs are pending again."""
    music.stop.by(caller)
    return done(request, "The run is stopped. Paid results are kept; the other songs are pending again.")


@router.post("/batches/{batch_id}/retry", dependencies=[*writer, *spender])
def retry_batch(request: Request, caller: ByCaller, batch_id: RowId) -> Response:
    """Let a failed batch do its step again."""
    run = music.retry_batch.by(caller, batch_id).run_id
    return done(request, f"Batch {batch_id} is tried again.", to=f"/console/music/runs/{run}")


@router.post("/batches/{batch_id}/promote", dependencies=writer)
def promote_batch(request: Request, caller: ByCaller, batch_id: RowId) -> Response:
    """End the wait of a batch before its next attempt."""
    music.promote_batch.by(caller, batch_id)
    return done(request, f"Batch {batch_id} waits no longer.")


@router.post("/batches/{batch_id}/remove", dependencies=writer)
def remove_batch(request: Request, caller: ByCaller, batch_id: RowId) -> Response:
    """Delete a batch that no worker processes."""
    music.remove_batch.by(caller, batch_id)
    return done(request, f"Batch {batch_id} is removed. Songs that waited in it are pending again.")


@router.post("/sync", dependencies=writer)
def sync(request: Request, caller: ByCaller) -> Response:
    """Read the music library now."""
    report = music.sync.by(caller)
    message = f"{plural(report.seen, 'song')} read: {count(report.added)} new, {count(report.changed)} changed"
    message += f", {count(report.missing)} missing" if report.missing else ""
    return done(request, f"{message}. {report.note}".strip() if report.note else f"{message}.")
