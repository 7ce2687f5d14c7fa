"""`/api/v1/music`: runs of the pipeline, songs, searches by mood, batches."""

from threading import Lock
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request, Response
from pydantic import StringConstraints

from pipeline.engine.errors import UnitError, UserError
from pipeline.flows.music import queries
from pipeline.flows.music.views import RunView, SongView
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, InContext, here, reader, spender, writer
from pipeline.interfaces.http.errors import RETRY_S, documented
from pipeline.interfaces.http.fields import HexId, Limit, Line, RowId, Search, Wait
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.long_poll import wait_for
from pipeline.interfaces.http.moments import At
from pipeline.interfaces.http.pages import Cursor, Page
from pipeline.interfaces.http.shapes import started
from pipeline.interfaces.rest.music_shapes import (
    FoundSongsShape,
    MusicBatchShape,
    MusicEstimateShape,
    MusicRunFiguresShape,
    MusicRunShape,
    MusicStart,
    MusicStatusShape,
    MusicSyncShape,
    SongShape,
    batch_shape,
)
from pipeline.operations.refusal import Refused
from tasks import music as flow
from tasks.music import BatchStatus, PipelineState, SongStatus, StartOptions

router = APIRouter(prefix="/music", tags=["music"], route_class=JsonRoute)
PATH = "/api/v1/music"
Mood = Annotated[
    Annotated[Line, StringConstraints(min_length=1)],
    Query(description="Words of names, albums, genres or tags, or a mood, such as: rainy night, slow."),
]
_sync = Lock()


@router.get("/status", dependencies=reader)
def status() -> MusicStatusShape:
    """Show the state of the pipeline, its songs and its batches."""
    return MusicStatusShape.model_validate(flow.status().contract())


@router.post("/sync", dependencies=writer, responses=documented(409))
def sync() -> MusicSyncShape:
    """Read all songs from the configured library, and answer when that is done. Nothing is paid for.

    Missing songs are flagged, never deleted. A run does this by itself, unless it is told to skip it.
    """
    if not _sync.acquire(blocking=False):
        raise Refused("the library is being read already", code="already_running")
    try:
        return MusicSyncShape.model_validate(flow.sync())
    finally:
        _sync.release()


@router.post("/estimate", dependencies=reader)
def estimate(options: MusicStart | None = None) -> MusicEstimateShape:
    """Estimate calls, cost and time of a run with these options. Changes nothing, and asks no provider."""
    return MusicEstimateShape.model_validate(flow.estimate(_options(options)))


@router.post(
    "/runs",
    status_code=202,
    dependencies=[*writer, *spender],
    responses={
        200: {"model": MusicRunShape, "description": "With `wait`: it has ended, or is paused."},
        202: started("The run goes on."),
        **documented(409),
    },
)
async def start(
    request: Request, response: Response, options: MusicStart | None = None, wait: Wait = 0
) -> MusicRunShape:
    """Sync, then have the provider describe all pending songs, batch by batch, within its limits. One run at a time."""
    run = await run_sync(flow.start, _options(options))
    return _told(request, response, await _waited(request, run.id, wait))


@router.get("/runs", dependencies=reader)
def list_runs(context: InContext, limit: Limit = 50, cursor: Cursor = None) -> Page[MusicRunShape]:
    """List runs, newest first."""
    found = queries.runs(context, limit=limit + 1, after=pages.decode(cursor, At, str))
    return pages.page(found, limit, MusicRunShape.model_validate, lambda run: (run.created_at, run.id))


@router.get("/runs/{run_id}", dependencies=reader, responses=documented(404))
async def show_run(request: Request, run_id: HexId, wait: Wait = 0) -> MusicRunShape:
    """Show a run; with `wait`, once it has ended or is paused."""
    return MusicRunShape.model_validate(await _waited(request, run_id, wait))


@router.get("/runs/{run_id}/figures", dependencies=reader, responses=documented(404))
def show_run_figures(context: InContext, run_id: HexId) -> MusicRunFiguresShape:
    """Show how far a run is: its songs and batches by state, and what its calls cost."""
    return MusicRunFiguresShape.model_validate(queries.run_figures(context, run_id))


@router.post("/pause", dependencies=writer, responses=documented(409))
def pause() -> MusicRunShape:
    """Let calls in progress of the active run finish, and start no others."""
    return MusicRunShape.model_validate(flow.pause())


@router.post(
    "/resume",
    status_code=202,
    dependencies=[*writer, *spender],
    responses={202: started("The run goes on."), **documented(409)},
)
def resume(request: Request, response: Response) -> MusicRunShape:
    """Continue the paused run."""
    return _told(request, response, flow.resume())


@router.post("/stop", dependencies=writer, responses=documented(409))
def stop() -> MusicRunShape:
    """End the active run. Results already paid for are kept; the other songs become pending again."""
    return MusicRunShape.model_validate(flow.stop())


@router.get("/songs", dependencies=reader)
def list_songs(
    context: InContext,
    status: SongStatus | None = None,
    q: Search = None,
    run_id: HexId | None = None,
    has_vector: bool | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[SongShape]:
    """List songs in the order in which they were added. `q`: in title, artist or album. `run_id`: which this run took
    up last."""
    (after,) = pages.decode(cursor, int) or (0,)
    found = queries.songs(
        context, status=status, words=q or "", run_id=run_id or "", has_vector=has_vector, after=after, limit=limit + 1
    )
    return pages.page(found, limit, SongShape.model_validate, lambda song: (song.id,))


@router.get("/songs/{song_id}", dependencies=reader, responses=documented(404))
def show_song(context: InContext, song_id: RowId) -> SongShape:
    """Show everything about a song."""
    return SongShape.model_validate(queries.song_by_id(context, song_id))


@router.get("/songs/{song_id}/similar", dependencies=reader, responses=documented(404))
def similar(context: InContext, song_id: RowId, limit: Limit = 10) -> FoundSongsShape:
    """Find songs like this one, best first."""
    song: SongView = queries.song_by_id(context, song_id)
    return FoundSongsShape.model_validate(flow.similar(str(song.id), limit))


@router.get("/search", dependencies=[*reader, *spender], responses=documented(409))
def search(q: Mood, limit: Limit = 10) -> FoundSongsShape:
    """Find songs with these words or for this mood, best first.

    With a provider of embeddings, that costs one small call.
    """
    try:
        return FoundSongsShape.model_validate(flow.search(q, limit))
    except UserError as error:
        if isinstance(error.__cause__, UnitError):  # of the provider: whether it passes is known of the cause alone
            raise error.__cause__ from error
        raise


@router.get("/batches", dependencies=reader)
def list_batches(
    context: InContext,
    caller: ByCaller,
    status: BatchStatus | None = None,
    run_id: HexId | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[MusicBatchShape]:
    """List batches, newest first. The pipeline gave up FAILED ones; `error` says why."""
    (before,) = pages.decode(cursor, int) or (None,)
    found = queries.batches(context, status=status, run_id=run_id or "", before=before, limit=limit + 1)
    told = caller.is_admin
    return pages.page(found, limit, lambda batch: batch_shape(batch, told), lambda batch: (batch.id,))


def _options(body: MusicStart | None) -> StartOptions:
    return StartOptions(**(body or MusicStart()).model_dump())


async def _waited(request: Request, run_id: str, wait: float) -> RunView:
    context = request.app.state.context
    return await wait_for(request.state.caller, lambda: queries.run(context, run_id), _at_rest, wait)


def _at_rest(run: RunView) -> bool:
    return run.outcome is not None or run.status is PipelineState.PAUSED


def _told(request: Request, response: Response, run: RunView) -> MusicRunShape:
    """202 with the address of the run; 200 if it has ended or is paused."""
    response.headers["Location"] = here(request, f"{PATH}/runs/{run.id}")
    if _at_rest(run):
        response.status_code = 200
    else:
        response.status_code = 202
        response.headers["Retry-After"] = str(RETRY_S)
    return MusicRunShape.model_validate(run)
