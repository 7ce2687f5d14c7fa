"""Reads: songs, batches, runs, and the status of the pipeline. Source 002, section 6."""

from datetime import datetime

from redis import RedisError
from sqlalchemy import and_, func, or_, select

from pipeline.engine.errors import UserError
from pipeline.engine.gate import CLOSED_BY
from pipeline.engine.metrics import count_by
from pipeline.engine.presence import Presence
from pipeline.engine.tables import mentions
from pipeline.engine.views import view_of
from pipeline.flows.music.models import BATCHES, RUNS, SONGS
from pipeline.flows.music.routes import Routes, current_routes, needed_queues
from pipeline.flows.music.states import BatchStatus, Mode, PipelineState, SongStatus
from pipeline.flows.music.views import BatchView, MusicStatus, RunView, SongView, song_view
from pipeline.providers import gates
from pipeline.storage.context import Context


def song(context: Context, reference: str) -> SongView:
    """A song by our id, its library's id, or its title (or "artist - title"). Raises `UserError`."""
    key = reference.strip()
    names = (SONGS.c.title, SONGS.c.artist + " - " + SONGS.c.title)
    which = [SONGS.c.server_id == key, or_(*(func.lower(name) == func.lower(key) for name in names))]
    if key.isascii() and key.isdigit() and len(key) < 19:
        which.insert(0, SONGS.c.id == int(key))
    with context.db.read() as session:
        for condition in which:
            rows = session.execute(select(SONGS).where(condition).order_by(SONGS.c.id).limit(6)).all()
            if len(rows) == 1:
                return song_view(rows[0])
            if rows:
                some = ", ".join(f"{row.id} ({row.artist} - {row.title})" for row in rows[:5])
                raise UserError(f"several songs are called {key}: {some}; give the number", code="ambiguous")
    raise UserError(f"there is no song {key}: see `penstock music show`", code="unknown_song")


def song_by_id(context: Context, song_id: int) -> SongView:
    """A song by our id. Raises `UserError` if there is none."""
    found = songs_by_id(context, [song_id])
    if song_id not in found:
        raise UserError(f"there is no song {song_id}", code="unknown_song")
    return found[song_id]


def songs(
    context: Context, *, status: SongStatus | None = None, words: str = "", after: int = 0, limit: int = 50,
    offset: int = 0,
) -> list[SongView]:  # fmt: skip
    """Songs, in the order in which they were added. `words`: in title, artist or album, in any case.

    `after`: beyond the song with this id.
    """
    query = select(SONGS).where(SONGS.c.id > after).order_by(SONGS.c.id).limit(limit).offset(offset)
    if status is not None:
        query = query.where(SONGS.c.status == status)
    if words:
        named = (SONGS.c.title, SONGS.c.artist, SONGS.c.album)
        query = query.where(or_(*(mentions(column, words) for column in named)))
    with context.db.read() as session:
        return [song_view(row) for row in session.execute(query)]


def songs_by_id(context: Context, ids: list[int]) -> dict[int, SongView]:
    """The songs with these ids, by id."""
    with context.db.read() as session:
        rows = session.execute(select(SONGS).where(SONGS.c.id.in_(ids)))
        return {row.id: song_view(row) for row in rows}


def batches(
    context: Context, *, status: BatchStatus | None = None, run_id: str = "", before: int | None = None,
    limit: int = 50,
) -> list[BatchView]:  # fmt: skip
    """Batches, the newest first. `before`: older than the batch with this id."""
    query = select(BATCHES).order_by(BATCHES.c.id.desc()).limit(limit)
    if run_id:
        query = query.where(BATCHES.c.run_id == run_id)
    if before is not None:
        query = query.where(BATCHES.c.id < before)
    if status is not None:
        query = query.where(BATCHES.c.status == status)
    with context.db.read() as session:
        return [view_of(BatchView, row) for row in session.execute(query)]


def run(context: Context, run_id: str) -> RunView:
    """A run by its id. Raises `UserError` if there is none."""
    with context.db.read() as session:
        row = session.execute(select(RUNS).where(RUNS.c.id == run_id)).one_or_none()
    if row is None:
        raise UserError(f"there is no run {run_id}", code="unknown_run")
    return view_of(RunView, row)


def runs(context: Context, *, limit: int = 50, after: tuple[datetime, str] | None = None) -> list[RunView]:
    """Runs, the newest first. `after`: beyond the run with this moment and id."""
    created_at, key = RUNS.c.created_at, RUNS.c.id
    query = select(RUNS).order_by(created_at.desc(), key.desc()).limit(limit)
    if after is not None:
        query = query.where(or_(created_at < after[0], and_(created_at == after[0], key < after[1])))
    with context.db.read() as session:
        return [view_of(RunView, row) for row in session.execute(query)]


def last_run(context: Context) -> RunView | None:
    """The active run, or the last one."""
    query = select(RUNS).order_by(RUNS.c.active.is_(None), RUNS.c.created_at.desc()).limit(1)
    with context.db.read() as session:
        row = session.execute(query).one_or_none()
    return view_of(RunView, row) if row else None


def status(context: Context) -> MusicStatus:
    """The status of the pipeline."""
    now = context.db.now()
    run = last_run(context)
    with context.db.read() as session:
        by_song = count_by(session, SONGS.c.status)
        missing = session.execute(select(func.count()).where(SONGS.c.missing_since.is_not(None))).scalar_one()
        mine = BATCHES.c.run_id == (run.id if run else "")
        by_batch = count_by(session, BATCHES.c.status, mine)
        later = (mine, BATCHES.c.status == BatchStatus.PENDING, BATCHES.c.next_run_at > now)
        delayed = session.execute(select(func.count()).where(*later)).scalar_one()
        failed = (SONGS.c.run_id == (run.id if run else ""), SONGS.c.status == SongStatus.FAILED)
        failed_songs = session.execute(select(func.count()).where(*failed)).scalar_one()
    state = run.status if run else PipelineState.IDLE
    alive, closed, stand_in = _surroundings(context, run)
    waiting = by_batch.get(BatchStatus.PENDING, 0) + by_batch.get(BatchStatus.QUEUED, 0) - delayed
    return MusicStatus(
        is_paused=state in {PipelineState.PAUSED, PipelineState.BREAKER} or bool(closed),
        is_worker_running=alive,
        active_jobs=by_batch.get(BatchStatus.PROCESSING, 0),
        waiting_jobs=waiting,
        completed_jobs=by_batch.get(BatchStatus.COMPLETED, 0),
        failed_jobs=by_batch.get(BatchStatus.FAILED, 0),
        delayed_jobs=delayed,
        pending_songs=by_song.get(SongStatus.PENDING, 0),
        total_songs=sum(by_song.values()),
        pipeline_state=state,
        songs={name.value: by_song[name] for name in SongStatus if name in by_song},
        missing_songs=missing,
        reason=closed,
        stand_in=stand_in,
        failed_songs=failed_songs,
        run=run,
    )


def _surroundings(context: Context, run: RunView | None) -> tuple[bool, str, str]:
    """(whether a worker runs, which gates that the run needs are closed, who stands in for its provider)."""
    if not context.online:
        return False, "", ""
    try:
        alive = bool(Presence(context.redis).alive())
        if run is None or run.outcome is not None:
            return alive, "", ""
        routes = current_routes(context)
        return alive, _closed_gates(context, run, routes), routes.stand_in if run.mode is not Mode.EMBEDDING else ""
    except RedisError:
        return False, "", ""


def _closed_gates(context: Context, run: RunView, routes: Routes) -> str:
    known = gates.gated_queues(context.settings)
    found: list[str] = []
    for name in sorted(needed_queues(routes, run.mode) & known.keys()):
        closed = gates.gate(context, known[name]).look().closed
        if closed:
            by, left_s, reason = closed
            left = f"{left_s:.0f} s left" if left_s < float("inf") else ""
            detail = ", ".join(part for part in (reason, left) if part)
            found.append(f"{name} is closed by {CLOSED_BY[by]}" + (f" ({detail})" if detail else ""))
    return "; ".join(found)
