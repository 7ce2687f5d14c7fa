"""Queries: the timeline by thread and hour, nodes, frames, batches, sources, rejected frames, dead letters."""

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from typing import Any

from redis import RedisError
from sqlalchemy import ColumnElement, and_, case, false, func, or_, select, true
from sqlalchemy.orm import Session

from pipeline.engine.errors import UserError
from pipeline.engine.metrics import count_by
from pipeline.engine.tables import mentions
from pipeline.engine.views import view_of
from pipeline.flows.screenshots.frames import files
from pipeline.flows.screenshots.graph import nodes
from pipeline.flows.screenshots.graph.models import CALLS, EDGES, EMBEDDINGS, LINKS, NODES, PROVENANCE, THREADS
from pipeline.flows.screenshots.models import BATCHES, REJECTIONS, SHOTS, SOURCES
from pipeline.flows.screenshots.rules.batches import run_ms, total_attempts
from pipeline.flows.screenshots.rules.provenance import Call, Operation, calls_behind
from pipeline.flows.screenshots.states import Ask, Origin, WorkStatus
from pipeline.flows.screenshots.views import (
    BatchView,
    CaptureView,
    DeadLetter,
    EdgeView,
    Extent,
    FrameView,
    Hour,
    NodeDetail,
    NodeFrames,
    NodeView,
    OriginView,
    RejectionView,
    ScreenshotView,
    SourceView,
    ThreadView,
)
from pipeline.settings import quota
from pipeline.storage.context import Context

Key = tuple[datetime, int]
"""A position in a list by time: the time and id of a frame or node."""
PORTION = 500
"""Most ids in one query."""
LETTERS = (("batch", BATCHES), ("merge", NODES), ("vector", EMBEDDINGS))
"""Kinds of dead letters, and their tables."""
LATE = 2000
"""Number of latest frames whose programs `apps` lists."""


def time_zone(context: Context) -> tzinfo:
    """Return the zone of displayed times. Raises `UserError` for an unknown zone name."""
    try:
        return quota.zone(context.settings.screenshots.time_zone)
    except ValueError as error:
        raise UserError(f"PENSTOCK_SCREENSHOTS__TIME_ZONE: {error}", code="bad_zone") from error


def timeline(
    context: Context,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    thread: str = "",
    kinds: tuple[str, ...] = ("event",),
    zone: tzinfo = UTC,
    limit: int = 500,
    before: Key | None = None,
) -> list[Hour]:
    """Return the latest `limit` nodes that are not merged into others, earliest first, grouped by hour (of `zone`) and
    thread.

    `kinds`: empty for all kinds. `until` is excluded. `before`: only nodes earlier than the node with this time and id.
    """
    where: list[ColumnElement[bool]] = [NODES.c.merged_into_id.is_(None)]
    if kinds:
        where.append(NODES.c.kind.in_(kinds))
    if since is not None:
        where.append(NODES.c.event_time >= since)
    if until is not None:
        where.append(NODES.c.event_time < until)
    if thread:
        where.append(NODES.c.thread_id == thread)
    if before is not None:
        at, node_id = before
        earlier = and_(NODES.c.event_time == at, NODES.c.id < node_id)
        where.append(or_(NODES.c.event_time < at, earlier))
    latest = select(NODES).where(*where).order_by(NODES.c.event_time.desc(), NODES.c.id.desc()).limit(limit)
    with context.db.read() as session:
        rows = session.execute(latest).all()[::-1]
        named = {row.thread_id for row in rows if row.thread_id}
        titles = dict(session.execute(select(THREADS.c.id, THREADS.c.title).where(THREADS.c.id.in_(named))).all())
    hours: dict[tuple[datetime, str], Hour] = {}
    for row in rows:
        begins = row.event_time.astimezone(zone).replace(minute=0, second=0, microsecond=0)
        key = (begins, row.thread_id or "")
        if key not in hours:
            hours[key] = Hour(begins, row.thread_id, titles.get(row.thread_id or "", ""), [])
        hours[key].nodes.append(view_of(NodeView, row))
    return list(hours.values())


def show(context: Context, node_id: int) -> NodeDetail:
    """Return a node, or the node that it was merged into. Raises `UserError` for an unknown id."""
    with context.db.read() as session:
        root_id = nodes.root(session, node_id)
        if root_id is None:
            raise UserError(f"there is no node {node_id}", code="unknown_node")
        node = session.execute(select(NODES).where(NODES.c.id == root_id)).one()
        vector = session.execute(select(EMBEDDINGS).where(EMBEDDINGS.c.id == root_id)).one_or_none()
        threads = select(THREADS).where(THREADS.c.id == node.thread_id)
        linked = select(LINKS.c.shot_id).where(LINKS.c.node_id == root_id)
        shots = select(SHOTS).where(SHOTS.c.id.in_(linked)).order_by(SHOTS.c.ts, SHOTS.c.id)
        origins = select(PROVENANCE).where(PROVENANCE.c.node_id == root_id).order_by(PROVENANCE.c.id)
        edges = select(EDGES).where((EDGES.c.from_id == root_id) | (EDGES.c.to_id == root_id))
        went_in = or_(NODES.c.merged_into_id == root_id, NODES.c.id.in_(json.loads(node.merged_from_ids)))
        merged = session.execute(select(NODES).where(went_in).order_by(NODES.c.id)).all()
        shown = [_screenshot(context, row) for row in session.execute(shots)]
        return NodeDetail(
            asked_id=node_id,
            node=view_of(NodeView, node),
            vector=WorkStatus(vector.status) if vector else None,
            vector_error=vector.error if vector else None,
            thread=next((view_of(ThreadView, row) for row in session.execute(threads)), None),
            screenshots=shown,
            provenance=[view_of(OriginView, row) for row in session.execute(origins)],
            calls=_calls(session, node, merged, [shot.id for shot in shown]),
            edges=[view_of(EdgeView, row) for row in session.execute(edges)],
            merged=[view_of(NodeView, row) for row in merged],
        )


def _calls(session: Session, node: Any, merged: Sequence[Any], shown: Sequence[int]) -> list[Call]:
    """Return the calls that a node rests on: for its own text, for the nodes merged into it, and for the merges."""
    calls: dict[int, Call] = {}
    for part in (node, *merged):
        own = select(LINKS.c.shot_id).where(LINKS.c.origin_id == part.id)
        frames = list(session.execute(own).scalars())
        batch = select(CALLS).where(CALLS.c.batch_id == part.batch_id).order_by(CALLS.c.id)
        for call in calls_behind(Origin(part.made_by), frames, _read(session.execute(batch))):
            calls[call.id] = call
    merges_into = select(CALLS).where(CALLS.c.node_id == node.id).order_by(CALLS.c.id)
    for call in calls_behind(Origin.MODEL, shown, _read(session.execute(merges_into))):
        calls[call.id] = call
    return list(calls.values())


def _read(rows: Iterable[Any]) -> list[Call]:
    return [
        Call(
            row.id,
            Operation(row.operation),
            row.provider,
            row.model,
            row.prompt_hash,
            row.attempt,
            tuple(json.loads(row.shot_ids)),
            Ask(row.ask),
        )
        for row in rows
    ]


def screenshot(context: Context, shot_id: int) -> ScreenshotView:
    """Return a frame. Raises `UserError` for an unknown id."""
    with context.db.read() as session:
        row = session.execute(select(SHOTS).where(SHOTS.c.id == shot_id)).one_or_none()
    if row is None:
        raise UserError(f"there is no screenshot {shot_id}", code="unknown_screenshot")
    return _screenshot(context, row)


def screenshots(
    context: Context,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    source: str = "",
    app: str = "",
    status: WorkStatus | None = None,
    limit: int = 50,
    before: Key | None = None,
) -> list[ScreenshotView]:
    """Return frames, the latest first. `app`: part of the program's name from the capturing side or the model, in any
    case.

    `until` is excluded. `before`: only frames earlier than the frame with this time and id.
    """
    where: list[ColumnElement[bool]] = []
    if since is not None:
        where.append(SHOTS.c.ts >= since)
    if until is not None:
        where.append(SHOTS.c.ts < until)
    if source:
        where.append(SHOTS.c.source_key == source)
    if app:
        where.append(or_(mentions(SHOTS.c.app, app), mentions(SHOTS.c.app_guess, app)))
    if status is not None:
        where.append(SHOTS.c.status == status)
    if before is not None:
        at, shot_id = before
        where.append(or_(SHOTS.c.ts < at, and_(SHOTS.c.ts == at, SHOTS.c.id < shot_id)))
    query = select(SHOTS).where(*where).order_by(SHOTS.c.ts.desc(), SHOTS.c.id.desc()).limit(limit)
    with context.db.read() as session:
        return [_screenshot(context, row) for row in session.execute(query)]


def screenshots_by_id(context: Context, shot_ids: Sequence[int]) -> dict[int, ScreenshotView]:
    """Return the first `PORTION` of these frames, by id; leave out unknown ids."""
    query = select(SHOTS).where(SHOTS.c.id.in_(shot_ids[:PORTION]))
    with context.db.read() as session:
        return {row.id: _screenshot(context, row) for row in session.execute(query)}


def neighbours(context: Context, shot: ScreenshotView) -> tuple[int | None, int | None]:
    """Return the ids of the frames of the same source before and after this one, by time of capture; None where there
    is none."""
    same, at = SHOTS.c.source_key == shot.source_key, (SHOTS.c.ts == shot.ts)
    earlier = or_(SHOTS.c.ts < shot.ts, and_(at, SHOTS.c.id < shot.id))
    later = or_(SHOTS.c.ts > shot.ts, and_(at, SHOTS.c.id > shot.id))
    before = select(SHOTS.c.id).where(same, earlier).order_by(SHOTS.c.ts.desc(), SHOTS.c.id.desc()).limit(1)
    after = select(SHOTS.c.id).where(same, later).order_by(SHOTS.c.ts, SHOTS.c.id).limit(1)
    with context.db.read() as session:
        return session.execute(before).scalar(), session.execute(after).scalar()


def nodes_of(context: Context, shot_id: int) -> list[NodeView]:
    """Return the nodes that rest on a frame and are not merged into others, in time order; empty for an unknown
    frame."""
    linked = select(LINKS.c.node_id).where(LINKS.c.shot_id == shot_id)
    query = select(NODES).where(NODES.c.id.in_(linked), NODES.c.merged_into_id.is_(None))
    with context.db.read() as session:
        return [view_of(NodeView, row) for row in session.execute(query.order_by(NODES.c.event_time, NODES.c.id))]


def nodes_by_id(context: Context, node_ids: Sequence[int]) -> dict[int, NodeView]:
    """Return the first `PORTION` of these nodes, by id, even nodes merged into others; leave out unknown ids."""
    query = select(NODES).where(NODES.c.id.in_(node_ids[:PORTION]))
    with context.db.read() as session:
        return {row.id: view_of(NodeView, row) for row in session.execute(query)}


def frames_of(context: Context, node_ids: Sequence[int], each: int = 4) -> dict[int, NodeFrames]:
    """Return each node's earliest frames, at most `each`, and the number of all its frames, by node id.

    Leaves out nodes without frames, and ids beyond the first `PORTION`.
    """
    ranked = (
        select(
            LINKS.c.node_id,
            SHOTS.c.id,
            SHOTS.c.ts,
            SHOTS.c.app,
            SHOTS.c.app_guess,
            SHOTS.c.window_title,
            SHOTS.c.storage_state,
            func.row_number().over(partition_by=LINKS.c.node_id, order_by=(SHOTS.c.ts, SHOTS.c.id)).label("place"),
            func.count().over(partition_by=LINKS.c.node_id).label("total"),
        )
        .join(SHOTS, SHOTS.c.id == LINKS.c.shot_id)
        .where(LINKS.c.node_id.in_(node_ids[:PORTION]))
        .subquery()
    )
    query = select(ranked).where(ranked.c.place <= each).order_by(ranked.c.node_id, ranked.c.place)
    by_node: dict[int, NodeFrames] = {}
    with context.db.read() as session:
        for row in session.execute(query):
            of_node = by_node.setdefault(row.node_id, NodeFrames(row.total, []))
            is_stored = row.storage_state == "stored"
            of_node.frames.append(FrameView(row.id, row.ts, row.app or row.app_guess, row.window_title, is_stored))
    return by_node


def screenshots_of(context: Context, batch_id: int) -> list[ScreenshotView]:
    """Return the frames that are in a batch now, in the order of capture, without deleted frames."""
    query = select(SHOTS).where(SHOTS.c.batch_id == batch_id).order_by(SHOTS.c.ts, SHOTS.c.id)
    with context.db.read() as session:
        return [_screenshot(context, row) for row in session.execute(query)]


def _screenshot(context: Context, row: Any) -> ScreenshotView:
    path = files.path_of(context.settings, row.file) if row.storage_state == "stored" else None
    return view_of(ScreenshotView, row, path=path)


def batches(
    context: Context, *, status: WorkStatus | None = None, limit: int = 50, before: int | None = None
) -> list[BatchView]:
    """Return batches, the newest first. `before`: only batches older than the batch with this id."""
    query = select(BATCHES).order_by(BATCHES.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(BATCHES.c.id < before)
    if status is not None:
        query = query.where(BATCHES.c.status == status)
    with context.db.read() as session:
        return [_batch(row, context.db.now()) for row in session.execute(query)]


def batch(context: Context, batch_id: int) -> BatchView:
    """Return a batch. Raises `UserError` for an unknown id."""
    with context.db.read() as session:
        row = session.execute(select(BATCHES).where(BATCHES.c.id == batch_id)).one_or_none()
    if row is None:
        raise UserError(f"there is no batch {batch_id}", code="unknown_batch")
    return _batch(row, context.db.now())


def _batch(row: Any, now: datetime) -> BatchView:
    return view_of(BatchView, row, total_attempts=total_attempts(row), run_ms=run_ms(row, now))


def rejections(
    context: Context,
    *,
    source: str = "",
    reason: str = "",
    nearest: int | None = None,
    limit: int = 50,
    before: int | None = None,
) -> list[RejectionView]:
    """Return the ledger of rejected frames, the newest first. `before`: only rejections older than this id.

    `nearest`: only rejections whose nearest frame is this one.
    """
    query = select(REJECTIONS).order_by(REJECTIONS.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(REJECTIONS.c.id < before)
    if source:
        query = query.where(REJECTIONS.c.source_key == source)
    if reason:
        query = query.where(REJECTIONS.c.reason == reason)
    if nearest is not None:
        query = query.where(REJECTIONS.c.nearest_id == nearest)
    with context.db.read() as session:
        return [view_of(RejectionView, row) for row in session.execute(query)]


def apps(context: Context) -> list[str]:
    """Return the programs of the `LATE` latest frames, sorted by name: as the capturing side named them, else as the
    model guessed."""
    late = select(SHOTS.c.app, SHOTS.c.app_guess).order_by(SHOTS.c.ts.desc(), SHOTS.c.id.desc()).limit(LATE).subquery()
    with context.db.read() as session:
        names = session.execute(select(late.c.app, late.c.app_guess).distinct()).all()
    return sorted({app or guess for app, guess in names} - {""}, key=str.casefold)


def sources(context: Context) -> list[SourceView]:
    """Return every source that ever sent a frame or that a user switched on or off."""
    with context.db.read() as session:
        frames, rejected = count_by(session, SHOTS.c.source_key), count_by(session, REJECTIONS.c.source_key)
        rows = session.execute(select(SOURCES).order_by(SOURCES.c.key)).all()
    return [view_of(SourceView, row, frames=frames.get(row.key, 0), rejected=rejected.get(row.key, 0)) for row in rows]


def dead_letters(
    context: Context, limit: int = 100, *, kind: str = "", after: tuple[datetime, str, int] | None = None
) -> list[DeadLetter]:
    """Return dead letters, the latest first, then by kind. The reason of a batch includes the reasons of its shards.

    `after`: only letters that follow the one with this time, kind and id.
    """
    letters: list[DeadLetter] = []
    with context.db.read() as session:
        for letter_kind, table in LETTERS:
            if kind not in ("", letter_kind):
                continue
            query = select(table).where(table.c.status == WorkStatus.FAILED_PERMANENT)
            if after is not None:
                at, of_kind, key = after
                later = true() if letter_kind > of_kind else false() if letter_kind < of_kind else table.c.id < key
                query = query.where(or_(table.c.updated_at < at, and_(table.c.updated_at == at, later)))
            rows = session.execute(query.order_by(table.c.updated_at.desc(), table.c.id.desc()).limit(limit))
            letters += [DeadLetter(letter_kind, row.id, row.error or "", row.attempts, row.updated_at) for row in rows]
    # The sort is stable: letters of the same time stay in the order of kind, then id.
    return sorted(letters, key=lambda letter: letter.at, reverse=True)[:limit]


def dead_letter_counts(context: Context) -> dict[str, int]:
    """Count dead letters by kind; a kind without any has 0."""
    with context.db.read() as session:
        return {
            kind: session.execute(
                select(func.count()).select_from(table).where(table.c.status == WorkStatus.FAILED_PERMANENT)
            ).scalar_one()
            for kind, table in LETTERS
        }


def extent(context: Context, since: datetime, until: datetime) -> Extent:
    """Return how many frames, nodes and rejections `forget` would delete in [since, until), and the times of the first
    and last frame."""
    within = (SHOTS.c.ts >= since, SHOTS.c.ts < until)
    shots = select(func.count(), func.min(SHOTS.c.ts), func.max(SHOTS.c.ts)).where(*within)
    resting = select(func.count(LINKS.c.origin_id.distinct())).join(SHOTS, SHOTS.c.id == LINKS.c.shot_id)
    ledger = select(func.count()).where(REJECTIONS.c.ts >= since, REJECTIONS.c.ts < until)
    with context.db.read() as session:
        count, first_at, last_at = session.execute(shots).one()
        resting_nodes = session.execute(resting.where(*within)).scalar_one()
        return Extent(count, resting_nodes, session.execute(ledger).scalar_one(), first_at, last_at)


def states_of(context: Context, shot_ids: Sequence[int]) -> dict[int, WorkStatus]:
    """Return the state of each of these frames: of its batch, or PENDING without one; leave out unknown ids.

    A frame that failed permanently keeps that state. A frame succeeds with its batch: then search finds its nodes.
    """
    states: dict[int, WorkStatus] = {}
    with context.db.read() as session:
        for start in range(0, len(shot_ids), PORTION):
            named = SHOTS.c.id.in_(shot_ids[start : start + PORTION])
            state = case((SHOTS.c.status == WorkStatus.FAILED_PERMANENT, SHOTS.c.status), else_=BATCHES.c.status)
            both = SHOTS.outerjoin(BATCHES, BATCHES.c.id == SHOTS.c.batch_id)
            rows = session.execute(select(SHOTS.c.id, state).select_from(both).where(named)).all()
            states |= {shot_id: WorkStatus(status or WorkStatus.PENDING) for shot_id, status in rows}
    return states


CAPTURE_KEY = "penstock:{screenshots}:capture"
"""Redis key of the latest capture's outcome. If Redis loses it, the next capture writes it again."""


def latest_capture(context: Context) -> CaptureView | None:
    """Return the configured sources of captures and the outcome of the latest capture by any worker; None if no source
    is configured. Without Redis, the outcome is unknown."""
    own = context.settings.screenshots
    if not own.capture_sources:
        return None
    record = None
    with suppress(RedisError):
        record = context.redis.get(CAPTURE_KEY) if context.online else None
    latest = json.loads(str(record)) if record else {}
    return CaptureView(
        sources=own.capture_sources,
        every_s=own.capture_interval_s,
        last_s=max(0.0, time.time() - latest["at"]) if latest else None,
        worker=latest.get("worker", ""),
        missing=latest.get("missing", []),
        error=latest.get("error", ""),
    )
