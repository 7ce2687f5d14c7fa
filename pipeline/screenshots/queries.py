"""Reading: the timeline by thread and hour, one node or frame, batches, the ledger of rejected frames."""

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from sqlalchemy import ColumnElement, select

from pipeline.engine.errors import UserError
from pipeline.screenshots.graph import merges
from pipeline.screenshots.graph.models import EDGES, LINKS, NODES, PROVENANCE, THREADS
from pipeline.screenshots.models import BATCHES, REJECTIONS, SHOTS
from pipeline.screenshots.states import WorkStatus
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
        found = merges.root(session, node_id)
        if found is None:
            raise UserError(f"there is no node {node_id}", code="unknown_node")
        node = session.execute(select(NODES).where(NODES.c.id == found)).one()
        thread = session.execute(select(THREADS).where(THREADS.c.id == node.thread_id)).one_or_none()
        mine = select(LINKS.c.shot_id).where(LINKS.c.node_id == found)
        shots = session.execute(select(SHOTS).where(SHOTS.c.id.in_(mine)).order_by(SHOTS.c.ts, SHOTS.c.id)).all()
        origins = select(PROVENANCE).where(PROVENANCE.c.node_id == found).order_by(PROVENANCE.c.id)
        edges = select(EDGES).where((EDGES.c.from_id == found) | (EDGES.c.to_id == found))
        merged = select(NODES).where(NODES.c.merged_into_id == found).order_by(NODES.c.id)
        return NodeDetail(
            node_id, node, thread, list(shots), list(session.execute(origins)), list(session.execute(edges)),
            list(session.execute(merged)),
        )  # fmt: skip


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
