"""Reading: the timeline by thread and hour, one node or frame, batches, sources, the ledger of rejected frames."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from sqlalchemy import ColumnElement, case, func, or_, select
from sqlalchemy.orm import Session

from pipeline.engine.errors import UserError
from pipeline.engine.metrics import count_by
from pipeline.flows.screenshots.graph import nodes
from pipeline.flows.screenshots.graph.models import CALLS, EDGES, LINKS, NODES, PROVENANCE, THREADS
from pipeline.flows.screenshots.models import BATCHES, REJECTIONS, SHOTS, SOURCES
from pipeline.flows.screenshots.rules.provenance import Call, Operation, calls_behind
from pipeline.flows.screenshots.states import Ask, Origin, WorkStatus
from pipeline.storage.context import Context


@dataclass(frozen=True)
class Hour:
    """What happened in one hour of one thread, in its order."""

    begins_at: datetime
    thread_id: str | None
    thread_title: str
    nodes: list[Any]


@dataclass(frozen=True)
class NodeDetail:
    """A node with all that belongs to it. `asked_id` differs from `node.id` if what was asked for went into it."""

    asked_id: int
    node: Any
    thread: Any | None
    screenshots: list[Any]
    provenance: list[Any]
    edges: list[Any]
    merged: list[Any]
    calls: list[Call]


def timeline(
    context: Context, *, since: datetime | None = None, until: datetime | None = None, thread: str = "",
    kinds: tuple[str, ...] = ("event",), zone: tzinfo = UTC, limit: int = 500,
) -> list[Hour]:  # fmt: skip
    """Nodes that stand for themselves by hour (of `zone`) and thread, in the order of time; the latest `limit`."""
    where: list[ColumnElement[bool]] = [NODES.c.merged_into_id.is_(None)]
    if kinds:
        where.append(NODES.c.kind.in_(kinds))
    if since is not None:
        where.append(NODES.c.event_time >= since)
    if until is not None:
        where.append(NODES.c.event_time < until)
    if thread:
        where.append(NODES.c.thread_id == thread)
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
        hours[key].nodes.append(row)
    return list(hours.values())


def show(context: Context, node_id: int) -> NodeDetail:
    """A node, or the one that it went into. Raises `UserError` if there is none."""
    with context.db.read() as session:
        found = nodes.root(session, node_id)
        if found is None:
            raise UserError(f"there is no node {node_id}", code="unknown_node")
        node = session.execute(select(NODES).where(NODES.c.id == found)).one()
        thread = session.execute(select(THREADS).where(THREADS.c.id == node.thread_id)).one_or_none()
        mine = select(LINKS.c.shot_id).where(LINKS.c.node_id == found)
        shots = session.execute(select(SHOTS).where(SHOTS.c.id.in_(mine)).order_by(SHOTS.c.ts, SHOTS.c.id)).all()
        origins = select(PROVENANCE).where(PROVENANCE.c.node_id == found).order_by(PROVENANCE.c.id)
        edges = select(EDGES).where((EDGES.c.from_id == found) | (EDGES.c.to_id == found))
        went_in = or_(NODES.c.merged_into_id == found, NODES.c.id.in_(json.loads(node.merged_from_ids)))
        merged = session.execute(select(NODES).where(went_in).order_by(NODES.c.id)).all()
        return NodeDetail(
            node_id, node, thread, list(shots), list(session.execute(origins)), list(session.execute(edges)),
            list(merged), _calls(session, node, merged, [shot.id for shot in shots]),
        )  # fmt: skip


def _calls(session: Session, node: Any, merged: Sequence[Any], shown: Sequence[int]) -> list[Call]:
    """The calls that a node rests on: those behind its own text, behind what went into it, and the merges."""
    found: dict[int, Call] = {}
    for part in (node, *merged):
        own = select(LINKS.c.shot_id).where(LINKS.c.origin_id == part.id)
        frames = list(session.execute(own).scalars())
        batch = select(CALLS).where(CALLS.c.batch_id == part.batch_id).order_by(CALLS.c.id)
        for call in calls_behind(Origin(part.made_by), frames, _read(session.execute(batch))):
            found[call.id] = call
    merges_into = select(CALLS).where(CALLS.c.node_id == node.id).order_by(CALLS.c.id)
    for call in calls_behind(Origin.MODEL, shown, _read(session.execute(merges_into))):
        found[call.id] = call
    return list(found.values())


def _read(rows: Iterable[Any]) -> list[Call]:
    return [
        Call(
            row.id, Operation(row.operation), row.provider, row.model, row.prompt_hash, row.attempt,
            tuple(json.loads(row.shot_ids)), Ask(row.ask),
        )
        for row in rows
    ]  # fmt: skip


def screenshot(context: Context, shot_id: int) -> Any:
    """A frame's row. Raises `UserError` if there is none."""
    with context.db.read() as session:
        row = session.execute(select(SHOTS).where(SHOTS.c.id == shot_id)).one_or_none()
    if row is None:
        raise UserError(f"there is no screenshot {shot_id}", code="unknown_screenshot")
    return row


def batches(context: Context, *, status: WorkStatus | None = None, limit: int = 50) -> list[Any]:
    """Batches, the newest first."""
    query = select(BATCHES).order_by(BATCHES.c.id.desc()).limit(limit)
    if status is not None:
        query = query.where(BATCHES.c.status == status)
    with context.db.read() as session:
        return list(session.execute(query))


def rejections(context: Context, *, source: str = "", limit: int = 50) -> list[Any]:
    """The ledger of frames that were not accepted, the newest first."""
    query = select(REJECTIONS).order_by(REJECTIONS.c.id.desc()).limit(limit)
    if source:
        query = query.where(REJECTIONS.c.source_key == source)
    with context.db.read() as session:
        return list(session.execute(query))


@dataclass(frozen=True)
class SourceRow:
    """A source with how many of its frames were accepted, and how many were not."""

    row: Any
    frames: int
    rejected: int


def sources(context: Context) -> list[SourceRow]:
    """Every source that a frame ever came from, or that was switched."""
    with context.db.read() as session:
        frames, rejected = count_by(session, SHOTS.c.source_key), count_by(session, REJECTIONS.c.source_key)
        rows = session.execute(select(SOURCES).order_by(SOURCES.c.key)).all()
    return [SourceRow(row, frames.get(row.key, 0), rejected.get(row.key, 0)) for row in rows]


@dataclass(frozen=True)
class Extent:
    """What lies in a range of time, and so would go with it: nodes that rest on a frame of it, too."""

    screenshots: int
    nodes: int
    rejections: int
    first_at: datetime | None
    last_at: datetime | None


def extent(context: Context, since: datetime, until: datetime) -> Extent:
    """What `forget` would delete."""
    within = (SHOTS.c.ts >= since, SHOTS.c.ts < until)
    shots = select(func.count(), func.min(SHOTS.c.ts), func.max(SHOTS.c.ts)).where(*within)
    resting = select(func.count(LINKS.c.origin_id.distinct())).join(SHOTS, SHOTS.c.id == LINKS.c.shot_id)
    ledger = select(func.count()).where(REJECTIONS.c.ts >= since, REJECTIONS.c.ts < until)
    with context.db.read() as session:
        count, first_at, last_at = session.execute(shots).one()
        nodes = session.execute(resting.where(*within)).scalar_one()
        return Extent(count, nodes, session.execute(ledger).scalar_one(), first_at, last_at)


_PORTION = 500


def states_of(context: Context, shot_ids: Sequence[int]) -> dict[int, WorkStatus]:
    """How these frames stand; one that was deleted meanwhile is left out.

    Done is a frame when its batch is: then there are nodes of it, which can be found.
    """
    found: dict[int, WorkStatus] = {}
    with context.db.read() as session:
        for start in range(0, len(shot_ids), _PORTION):
            mine = SHOTS.c.id.in_(shot_ids[start : start + _PORTION])
            stands = case((SHOTS.c.status == WorkStatus.FAILED_PERMANENT, SHOTS.c.status), else_=BATCHES.c.status)
            both = SHOTS.outerjoin(BATCHES, BATCHES.c.id == SHOTS.c.batch_id)
            rows = session.execute(select(SHOTS.c.id, stands).select_from(both).where(mine)).all()
            found |= {shot_id: WorkStatus(status or WorkStatus.PENDING) for shot_id, status in rows}
    return found
