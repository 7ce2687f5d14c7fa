"""`/api/v1/music`: runs of the pipeline, songs, searches by mood, batches."""

from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request, Response
from pydantic import ConfigDict, Field, StringConstraints

from pipeline.engine.errors import UnitError, UserError
from pipeline.flows.music.library.songs import SyncReport
from pipeline.flows.music.service import StartOptions
from pipeline.flows.music.states import BatchStatus, Mode, SongStatus
from pipeline.flows.music.views import BatchView, Estimate, MusicStatus, RunFigures, RunView, SearchResult, SongView
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, here, reader, same_site, spender, writer
from pipeline.interfaces.http.errors import RETRY_S, documented
from pipeline.interfaces.http.fields import HexId, Limit, Line, RowId, Search, Strict, Wait
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.long_poll import wait_for
from pipeline.interfaces.http.moments import At
from pipeline.interfaces.http.pages import Cursor, Page
from pipeline.interfaces.http.shapes import started
from pipeline.operations import music
from pipeline.operations.caller import Caller

router = APIRouter(prefix="/music", tags=["music"], route_class=JsonRoute)
PATH = "/api/v1/music"
Mood = Annotated[
    Annotated[Line, StringConstraints(min_length=1)],
    Query(description="Words of names, albums, genres or tags; or a mood, such as: rainy night, slow."),
]


class MusicStart(Strict):
    """The options of a run."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"mode": "full", "skip_sync": False, "limit": 20}]})
    mode: Mode = Field(
        default=Mode.FULL, description="`full`, `metadata` (descriptions only) or `embedding` (vectors only)."
    )
    skip_sync: bool = Field(default=False, description="Skip reading the music library.")
    limit: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(default=None, description="The most songs.")
    failed: bool = Field(default=False, description="Also retry all failed songs.")


@router.get("/status", dependencies=reader)
def status(caller: ByCaller) -> MusicStatus:
    """Show the state of the pipeline, its songs and its batches."""
    return music.status.by(caller)


@router.post("/sync", dependencies=writer, responses=documented(409))
def sync(caller: ByCaller) -> SyncReport:
    """Read all songs from the configured library, and answer at the end. It calls no provider.

    Missing songs are flagged, never deleted. A run reads the library first, unless `skip_sync` is set.
    """
    return music.sync.by(caller)


@router.post("/estimate", dependencies=reader)
def estimate(caller: ByCaller, options: MusicStart | None = None) -> Estimate:
    """Estimate calls, cost and time of a run with these options, without changes or calls to a provider."""
    return music.estimate.by(caller, _options(options))


@router.post(
    "/runs",
    status_code=202,
    dependencies=[*writer, *spender],
    responses={
        200: {"model": RunView, "description": "With `wait`: the run has ended, or is paused."},
        202: started("The run is active."),
        **documented(409),
    },
)
async def start(
    request: Request, response: Response, caller: ByCaller, options: MusicStart | None = None, wait: Wait = 0
) -> RunView:
    """Read the library, then let the provider describe all pending songs, within its limits. One run at a time."""
    run = await run_sync(music.start.by, caller, _options(options))
    return _answer(request, response, await _waited(caller, run.id, wait))


@router.get("/runs", dependencies=reader)
def list_runs(caller: ByCaller, limit: Limit = 50, cursor: Cursor = None) -> Page[RunView]:
    """List runs, newest first."""
    rows = music.runs.by(caller, limit=limit + 1, after=pages.decode(cursor, At, str))
    return pages.views(rows, limit, lambda run: (run.created_at, run.id))


@router.get("/runs/{run_id}", dependencies=reader, responses=documented(404))
async def show_run(caller: ByCaller, run_id: HexId, wait: Wait = 0) -> RunView:
    """Show a run; with `wait`, once it has ended or is paused."""
    return await _waited(caller, run_id, wait)


@router.get("/runs/{run_id}/figures", dependencies=reader, responses=documented(404))
def show_run_figures(caller: ByCaller, run_id: HexId) -> RunFigures:
    """Show the progress of a run: its songs and batches by state, and the cost of its calls."""
    return music.figures.by(caller, run_id)


@router.post("/pause", dependencies=writer, responses=documented(409))
def pause(caller: ByCaller) -> RunView:
    """Let calls in progress of the active run finish, and start no others."""
    return music.pause.by(caller)


@router.post(
    "/resume",
    status_code=202,
    dependencies=[*writer, *spender],
    responses={202: started("The run is active."), **documented(409)},
)
def resume(request: Request, response: Response, caller: ByCaller) -> RunView:
    """Continue the paused run."""
    return _answer(request, response, music.resume.by(caller))


@router.post("/stop", dependencies=writer, responses=documented(409))
def stop(caller: ByCaller) -> RunView:
    """End the active run. Paid results are kept; the other songs become pending again."""
    return music.stop.by(caller)


@router.get("/songs", dependencies=reader)
def list_songs(
    caller: ByCaller,
    status: SongStatus | None = None,
    q: Search = None,
    run_id: HexId | None = None,
    has_vector: bool | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[SongView]:
    """List songs in the order of their addition. `q`: in title, artist or album. `run_id`: the last run that took
    up the song."""
    (after,) = pages.decode(cursor, int) or (0,)
    rows = music.songs.by(
        caller, status=status, words=q or "", run_id=run_id or "", has_vector=has_vector, after=after, limit=limit + 1
    )
    return pages.views(rows, limit, lambda song: (song.id,))


@router.get("/songs/{song_id}", dependencies=reader, responses=documented(404))
def show_song(caller: ByCaller, song_id: RowId) -> SongView:
    """Show a song with its analysis."""
    return music.song_by_id.by(caller, song_id)


@router.get("/songs/{song_id}/similar", dependencies=reader, responses=documented(404))
def similar(caller: ByCaller, song_id: RowId, limit: Limit = 10) -> SearchResult:
    """Find similar songs, best first."""
    song = music.song_by_id.by(caller, song_id)
    return music.similar.by(caller, str(song.id), limit)


@router.get("/search", dependencies=[*reader, *same_site], responses=documented(409))
def search(caller: ByCaller, q: Mood, limit: Limit = 10) -> SearchResult:
    """Find songs by words or mood, best first.

    With a provider of embeddings, that costs one small call.
    """
    try:
        return music.search.by(caller, q, limit)
    except UserError as error:
        if isinstance(error.__cause__, UnitError):  # a failure of the provider: its cause tells whether it is temporary
            raise error.__cause__ from error
        raise


@router.get("/batches", dependencies=reader)
def list_batches(
    caller: ByCaller,
    status: BatchStatus | None = None,
    run_id: HexId | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[BatchView]:
    """List batches, newest first. FAILED batches are given up; `error` has the reason."""
    (before,) = pages.decode(cursor, int) or (None,)
    rows = music.batches.by(caller, status=status, run_id=run_id or "", before=before, limit=limit + 1)
    return pages.views(rows, limit, lambda batch: (batch.id,))


@router.post(
    "/batches/{batch_id}/retry", status_code=202, dependencies=[*writer, *spender], responses=documented(404, 409)
)
def retry_batch(caller: ByCaller, batch_id: RowId) -> BatchView:
    """Let a failed batch do its step again, with its paid results: in the active run, or in a new one."""
    return music.retry_batch.by(caller, batch_id)


@router.post("/batches/{batch_id}/promote", dependencies=writer, responses=documented(404, 409))
def promote_batch(caller: ByCaller, batch_id: RowId) -> BatchView:
    """End the wait of a batch before its next attempt."""
    return music.promote_batch.by(caller, batch_id)


@router.delete("/batches/{batch_id}", status_code=204, dependencies=writer, responses=documented(404, 409))
def remove_batch(caller: ByCaller, batch_id: RowId) -> None:
    """Delete a batch that no worker processes. Songs that waited in it are pending again."""
    music.remove_batch.by(caller, batch_id)


def _options(body: MusicStart | None) -> StartOptions:
    return StartOptions(**(body or MusicStart()).model_dump())


async def _waited(caller: Caller, run_id: str, wait: float) -> RunView:
    return await wait_for(caller, lambda: music.run.by(caller, run_id), lambda run: run.settled, wait)


def _answer(request: Request, response: Response, run: RunView) -> RunView:
    """Return the run, and set status and address of the response: 200 if it has ended or is paused, else 202."""
    response.headers["Location"] = here(request, f"{PATH}/runs/{run.id}")
    if run.settled:
        response.status_code = 200
    else:
        response.status_code = 202
        response.headers["Retry-After"] = str(RETRY_S)
    return run
