"""Reads: songs, batches, runs, and the status of the pipeline. Rules: docs/sources/music.md#status."""

from collections.abc import Sequence
from datetime import datetime

from redis import RedisError
from sqlalchemy import ColumnElement, and_, func, or_, select

from pipeline.engine.errors import UserError
from pipeline.engine.gate import CLOSED_BY
from pipeline.engine.metrics import count_by
from pipeline.engine.presence import Presence
from pipeline.engine.tables import mentions
from pipeline.engine.views import view_of
from pipeline.flows.music.models import BATCHES, RUNS, SONGS
from pipeline.flows.music.routes import Routes, current_routes, needed_queues
from pipeline.flows.music.states import LIVE, BatchStatus, Mode, PipelineState, SongStatus
from pipeline.flows.music.views import BatchView, MusicStatus, RunFigures, RunSums, RunView, SongView, song_view
from pipeline.providers import calls, gates, queue_views
from pipeline.providers.calls import CallFilter
from pipeline.providers.queue_views import Holdup
from pipeline.storage.context import Context


def song(context: Context, reference: str) -> SongView:
    """Return a song by the first of these that matches: our id; its library's id, in this case; title, "artist - title"
    or path, in any case; the end of a title behind " - ", or its file's name.

    Raises `UserError` if none or several match.
    """
    key = reference.strip()
    names = (SONGS.c.title, SONGS.c.artist + " - " + SONGS.c.title, SONGS.c.path)
    conditions = [SONGS.c.server_id == key, or_(*(func.lower(name) == func.lower(key) for name in names))]
    # The title of a file without tags is its name, such as "Anna Vale - Rain".
    conditions.append(or_(_ends(SONGS.c.title, f" - {key}"), _ends(SONGS.c.path, f"/{key}")))
    if key.isascii() and key.isdigit() and len(key) < 19:
        conditions.insert(0, SONGS.c.id == int(key))
    with context.db.read() as session:
        for condition in conditions:
            rows = session.execute(select(SONGS).where(condition).order_by(SONGS.c.id).limit(6)).all()
            if len(rows) == 1:
                return song_view(rows[0])
            if rows:
                examples = ", ".join(f"{row.id} ({row.artist} - {row.title})" for row in rows[:5])
                raise UserError(f"several songs are called {key}: {examples}; give the number", code="ambiguous")
    raise UserError(f"there is no song {key}: see `penstock music show`", code="unknown_song")


def _ends(column: ColumnElement[str], text: str) -> ColumnElement[bool]:
    """Return the condition that a column ends with this text, in any case."""
    return func.lower(func.substr(column, func.length(column) - len(text) + 1)) == func.lower(text)


def song_by_id(context: Context, song_id: int) -> SongView:
    """Return a song by our id, not the library's. Raises `UserError` for an unknown id."""
    by_id = songs_by_id(context, [song_id])
    if song_id not in by_id:
        raise UserError(f"there is no song {song_id}", code="unknown_song")
    return by_id[song_id]


def songs(
    context: Context,
    *,
    status: SongStatus | None = None,
    words: str = "",
    run_id: str = "",
    has_vector: bool | None = None,
    after: int = 0,
    limit: int = 50,
    offset: int = 0,
) -> list[SongView]:
    """Return songs in the order in which they were added. `words`: part of title, artist or album, in any case.

    `run_id`: the last run that took them up. `has_vector`: of any model. `after`: start behind the song with this id.
    """
    query = select(SONGS).where(SONGS.c.id > after).order_by(SONGS.c.id).limit(limit).offset(offset)
    if status is not None:
        query = query.where(SONGS.c.status == status)
    if run_id:
        query = query.where(SONGS.c.run_id == run_id)
    if has_vector is not None:
        query = query.where((SONGS.c.vector_model != "") if has_vector else (SONGS.c.vector_model == ""))
    if words:
        named = (SONGS.c.title, SONGS.c.artist, SONGS.c.album)
        query = query.where(or_(*(mentions(column, words) for column in named)))
    with context.db.read() as session:
        return [song_view(row) for row in session.execute(query)]


def songs_by_id(context: Context, ids: list[int]) -> dict[int, SongView]:
    """Return the songs with these ids, by id; leave out unknown ids."""
    with context.db.read() as session:
        rows = session.execute(select(SONGS).where(SONGS.c.id.in_(ids)))
        return {row.id: song_view(row) for row in rows}


def batches(
    context: Context,
    *,
    status: BatchStatus | None = None,
    run_id: str = "",
    before: int | None = None,
    limit: int = 50,
) -> list[BatchView]:
    """Return batches, newest first. `before`: only batches older than this id."""
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
    """Return a run. Raises `UserError` for an unknown id."""
    with context.db.read() as session:
        row = session.execute(select(RUNS).where(RUNS.c.id == run_id)).one_or_none()
    if row is None:
        raise UserError(f"there is no run {run_id}", code="unknown_run")
    return view_of(RunView, row)


def runs(context: Context, *, limit: int = 50, after: tuple[datetime, str] | None = None) -> list[RunView]:
    """Return runs, newest first. `after`: start behind this (time of creation, id)."""
    created_at, key = RUNS.c.created_at, RUNS.c.id
    query = select(RUNS).order_by(created_at.desc(), key.desc()).limit(limit)
    if after is not None:
        query = query.where(or_(created_at < after[0], and_(created_at == after[0], key < after[1])))
    with context.db.read() as session:
        return [view_of(RunView, row) for row in session.execute(query)]


def run_figures(context: Context, run_id: str) -> RunFigures:
    """Return the progress and cost of a run. Raises `UserError` for an unknown id."""
    run(context, run_id)
    with context.db.read() as session:
        by_song = count_by(session, SONGS.c.status, SONGS.c.run_id == run_id)
        by_batch = count_by(session, BATCHES.c.status, BATCHES.c.run_id == run_id)
        delayed = session.execute(select(func.count()).where(*_delayed(run_id, context.db.now()))).scalar_one()
    total = calls.total(context, CallFilter("music", run_id))
    return RunFigures(
        run_id,
        by_song,
        by_batch,
        delayed,
        total.calls if total else 0,
        total.failed if total else 0,
        total.input_tokens if total else 0,
        total.output_tokens if total else 0,
        total.cost if total else 0.0,
    )


def run_sums(context: Context, run_ids: Sequence[str]) -> dict[str, RunSums]:
    """Return the numbers of songs by state and the cost of the calls of each of these runs, by the run's id; zero for
    unknown ids."""
    of_runs = SONGS.c.run_id.in_(run_ids)
    query = select(SONGS.c.run_id, SONGS.c.status, func.count()).where(of_runs).group_by(SONGS.c.run_id, SONGS.c.status)
    songs: dict[str, dict[str, int]] = {}
    with context.db.read() as session:
        for run_id, status, count in session.execute(query):
            songs.setdefault(run_id, {})[status] = count
    costs = calls.costs(context, "music", run_ids)
    return {run_id: RunSums(songs.get(run_id, {}), costs.get(run_id, 0.0)) for run_id in run_ids}


def _delayed(run_id: str, now: datetime) -> tuple[ColumnElement[bool], ...]:
    return BATCHES.c.run_id == run_id, BATCHES.c.status == BatchStatus.PENDING, BATCHES.c.next_run_at > now


def last_run(context: Context) -> RunView | None:
    """Return the active run, else the newest run; None if none ever started."""
    query = select(RUNS).order_by(RUNS.c.active.is_(None), RUNS.c.created_at.desc()).limit(1)
    with context.db.read() as session:
        row = session.execute(query).one_or_none()
    return view_of(RunView, row) if row else None


def status(context: Context) -> MusicStatus:
    """Return the counts of all songs, and the state and batches of the active run, or of the newest one."""
    now = context.db.now()
    run = last_run(context)
    with context.db.read() as session:
        by_song = count_by(session, SONGS.c.status)
        with_vector = session.execute(select(func.count()).where(SONGS.c.vector_model != "")).scalar_one()
        missing = session.execute(select(func.count()).where(SONGS.c.missing_since.is_not(None))).scalar_one()
        of_run = BATCHES.c.run_id == (run.id if run else "")
        by_batch = count_by(session, BATCHES.c.status, of_run)
        delayed = session.execute(select(func.count()).where(*_delayed(run.id if run else "", now))).scalar_one()
        failed = (SONGS.c.run_id == (run.id if run else ""), SONGS.c.status == SongStatus.FAILED)
        failed_songs = session.execute(select(func.count()).where(*failed)).scalar_one()
    state = run.status if run else PipelineState.IDLE
    alive, closed, stand_in, waits = _surroundings(context, run)
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
        songs_with_vector=with_vector,
        waits=waits,
    )


def _surroundings(context: Context, run: RunView | None) -> tuple[bool, str, str, list[Holdup]]:
    """Return (whether a worker runs, why gates that the run needs are closed, the provider that stands in, the holdups
    of its queues); without Redis, all false or empty."""
    if not context.online:
        return False, "", "", []
    try:
        alive = bool(Presence(context.redis).alive())
        if run is None or run.outcome is not None:
            return alive, "", "", []
        routes = current_routes(context)
        stand_in = routes.stand_in if run.mode is not Mode.EMBEDDING else ""
        return alive, _closed_gates(context, run, routes), stand_in, _holdups(context, run, routes)
    except RedisError:
        return False, "", "", []


def _holdups(context: Context, run: RunView, routes: Routes) -> list[Holdup]:
    if run.status not in LIVE:
        return []
    names = sorted(needed_queues(routes, run.mode) & context.gates.queues.keys())
    now = context.db.now()
    holdups = [queue_views.holdup(queue_views.queue(context, name), now) for name in names]
    return [holdup for holdup in holdups if holdup is not None]


def _closed_gates(context: Context, run: RunView, routes: Routes) -> str:
    gates_closed: list[str] = []
    for name in sorted(needed_queues(routes, run.mode) & context.gates.queues.keys()):
        closed = gates.gate(context, name).inspect().closed
        if closed:
            by, left_s, reason = closed
            duration = f"{left_s:.0f} s left" if left_s < float("inf") else ""
            detail = ", ".join(part for part in (reason, duration) if part)
            gates_closed.append(f"{name} is closed by {CLOSED_BY[by]}" + (f" ({detail})" if detail else ""))
    return "; ".join(gates_closed)
