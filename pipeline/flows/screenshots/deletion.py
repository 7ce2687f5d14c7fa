"""Deletes the frames of a time range and everything derived from them, in rows, indexes and files.

A node rests on its own frames and on those of nodes merged into it. Deleting the node's own frames deletes the node.
Deleting only frames of merged nodes restores the text from before the merges; the remaining nodes merge anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy import and_, delete, func, or_, select, update
from sqlalchemy.orm import Session

from pipeline.engine import accounts, announced, kept_answers, outbox, traces
from pipeline.engine.claims import FREE
from pipeline.engine.errors import UserError
from pipeline.engine.traces import AiCall
from pipeline.engine.transaction import Tx
from pipeline.engine.wire import VIEW
from pipeline.flows.screenshots.frames import files
from pipeline.flows.screenshots.graph import nodes
from pipeline.flows.screenshots.graph.models import ENTITIES, LINKS, MENTIONS, NODES, PROVENANCE, THREADS
from pipeline.flows.screenshots.models import BATCHES, REJECTIONS, SHARDS, SHOTS, SOURCES
from pipeline.flows.screenshots.scopes import FLOW, Scope, buffer_of
from pipeline.flows.screenshots.states import NODE, SCREENSHOT, WorkEvent, WorkStatus
from pipeline.flows.screenshots.work import merge
from pipeline.storage import vectors
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
_PORTION = 200


@dataclass(frozen=True)
class Forgotten:
    """How much was deleted."""

    __pydantic_config__ = VIEW
    screenshots: int = 0
    nodes: int = 0
    restored: int = 0
    """Nodes restored to their texts from before their merges."""


def forget(context: Context, since: datetime, until: datetime) -> Forgotten:
    """Delete frames captured in [since, until) and everything derived from them. Safe to repeat after a crash.

    Raises `UserError` for an empty range.
    """
    if since >= until:
        raise UserError("the range ends before it begins", code="usage")
    within = and_(SHOTS.c.ts >= since, SHOTS.c.ts < until)
    total = Forgotten()
    while True:
        with context.db.read() as session:
            ids = list(session.execute(select(SHOTS.c.id).where(within).order_by(SHOTS.c.id).limit(_PORTION)).scalars())
        if not ids:
            break
        done, deleted_files = context.db.run(lambda tx, ids=ids: _forget(tx, ids))  # type: ignore[misc]
        files.discard(context.settings, deleted_files)
        total = Forgotten(
            total.screenshots + done.screenshots, total.nodes + done.nodes, total.restored + done.restored
        )
    context.db.run(lambda tx: _forget_ledgers(tx, since, until))
    kept_answers.erase(context.settings.answer_dir, FLOW)
    nodes.FULL_TEXT.purge(context.db)
    context.db.checkpoint()
    log.info("screenshots.forgotten", screenshots=total.screenshots, nodes=total.nodes, restored=total.restored)
    return total


def _forget(tx: Tx, ids: Sequence[int]) -> tuple[Forgotten, list[str]]:
    # Lock the sources, so that no other process puts these frames into a batch.
    sources = select(SHOTS.c.source_key).where(SHOTS.c.id.in_(ids))
    locked = select(SOURCES.c.key).where(SOURCES.c.key.in_(sources)).order_by(SOURCES.c.key).with_for_update()
    keys = tx.execute(locked).scalars().all()
    # Restored nodes merge anew, and frames of broken-up batches join new batches.
    tx.launch(FLOW, *map(buffer_of, keys), *Scope.all())
    tx.wake_in(FLOW, tx.settings.screenshots.batch_timeout_s)
    in_work = and_(BATCHES.c.status != WorkStatus.SUCCEEDED, BATCHES.c.id == SHOTS.c.batch_id, SHOTS.c.id.in_(ids))
    cut = {str(batch_id) for batch_id in tx.execute(select(BATCHES.c.id).where(in_work)).scalars()}
    accounts.cut_off(tx, FLOW, cut)
    _forget_batches(tx, ids)
    doomed = set(tx.execute(select(LINKS.c.origin_id).where(LINKS.c.shot_id.in_(ids))).scalars())
    concerned = _concerned(tx, doomed)
    # Lock threads in the order of ids. Other transactions lock at most one thread, so no deadlock can occur.
    threads = select(NODES.c.thread_id).where(NODES.c.id.in_(concerned | doomed), NODES.c.thread_id.is_not(None))
    names = sorted(set(tx.execute(threads).scalars()))
    tx.execute(select(THREADS.c.id).where(THREADS.c.id.in_(names)).order_by(THREADS.c.id).with_for_update()).all()
    # The call of a merge holds the texts of both nodes.
    merge_calls = and_(AiCall.flow == FLOW, AiCall.unit.in_([merge.trace_unit(node_id) for node_id in concerned]))
    traces.erase(tx, merge_calls)
    # First, give frames back that doomed nodes took over from other nodes.
    back = update(LINKS).where(LINKS.c.node_id.in_(doomed), LINKS.c.origin_id.not_in(doomed))
    tx.execute(back.values(node_id=LINKS.c.origin_id))
    nodes.unindex(tx, sorted(doomed))
    tx.execute(delete(NODES).where(NODES.c.id.in_(doomed)))
    restored = sorted(concerned - doomed)
    own_texts = select(NODES.c.own).where(NODES.c.id.in_(restored))
    nodes.keep_entities(tx, [nodes.load(own).entities for own in tx.execute(own_texts).scalars()])
    for node_id in restored:
        _restore(tx, node_id)
    nodes.reindex(tx, restored)
    deleted_files = list(tx.execute(delete(SHOTS).where(SHOTS.c.id.in_(ids)).returning(SHOTS.c.file)).scalars())
    used = select(NODES.c.id).where(NODES.c.thread_id == THREADS.c.id).exists()
    tx.execute(delete(THREADS).where(THREADS.c.id.in_(names), ~used))
    _rename(tx, names)
    mentioned = select(MENTIONS.c.node_id).where(MENTIONS.c.entity_id == ENTITIES.c.id).exists()
    tx.execute(delete(ENTITIES).where(~mentioned))
    return Forgotten(len(deleted_files), len(doomed), len(restored)), deleted_files


def _concerned(session: Session, doomed: set[int]) -> set[int]:
    """Return the ids of the nodes to delete, `doomed`, and of all nodes that are connected to them by merges."""
    concerned: set[int] = set()
    fresh = set(doomed)
    while fresh:
        concerned |= fresh
        down = select(NODES.c.id).where(NODES.c.merged_into_id.in_(fresh))
        up = select(NODES.c.merged_into_id).where(NODES.c.id.in_(fresh), NODES.c.merged_into_id.is_not(None))
        near = {*session.execute(down).scalars(), *session.execute(up).scalars()}
        fresh = {node_id for node_id in near if node_id is not None} - concerned
    return concerned


def _restore(tx: Tx, node_id: int) -> None:
    """Restore a node's own text from before its merges, and let it wait for a new merge."""
    row = tx.execute(select(NODES).where(NODES.c.id == node_id)).one()
    content = nodes.load(row.own)
    tx.execute(update(LINKS).where(LINKS.c.origin_id == node_id).values(node_id=node_id))
    latest = select(func.max(SHOTS.c.ts)).join(LINKS, LINKS.c.shot_id == SHOTS.c.id).where(LINKS.c.origin_id == node_id)
    at = tx.execute(latest).scalar() or row.event_time
    NODE.move(
        tx,
        NODES,
        WorkEvent.REOPEN,
        NODES.c.id == node_id,
        **FREE,
        **nodes.columns(content),
        event_time=at,
        merged_into_id=None,
        merged_from_ids="[]",
        version=row.version + 1,
        attempts=0,
        next_run_at=None,
        error=None,
        updated_at=tx.now,
    )
    nodes.want_vectors(tx, [node_id])
    nodes.mention(tx, node_id, content.entities)
    vectors.remove(tx, nodes.KIND, [node_id])
    merged = and_(PROVENANCE.c.node_id == node_id, PROVENANCE.c.act == "merged")
    tx.execute(delete(PROVENANCE).where(merged))


def _rename(session: Session, names: Sequence[str]) -> None:
    """Give each remaining thread the title and time of its first node."""
    for name in names:
        first = select(NODES.c.title, NODES.c.event_time).where(NODES.c.thread_id == name)
        row = session.execute(first.order_by(NODES.c.event_time, NODES.c.id).limit(1)).one_or_none()
        if row is not None:
            renamed = update(THREADS).where(THREADS.c.id == name)
            session.execute(renamed.values(title=row.title, first_at=row.event_time))


def _forget_batches(tx: Tx, ids: Sequence[int]) -> None:
    """Break up unfinished batches, even claimed ones, and clear the texts that finished batches stored."""
    has = select(SHOTS.c.batch_id).where(SHOTS.c.id.in_(ids), SHOTS.c.batch_id.is_not(None)).distinct()
    locked = select(BATCHES).where(BATCHES.c.id.in_(has)).order_by(BATCHES.c.id).with_for_update()
    rows = tx.execute(locked).all()
    done = [row.id for row in rows if row.status == WorkStatus.SUCCEEDED]
    apart = [row.id for row in rows if row.status != WorkStatus.SUCCEEDED]
    units = [str(row.id) for row in rows]
    calls = and_(AiCall.flow == FLOW, AiCall.scope_id.in_(units))
    traces.erase(tx, calls)
    outbox.erase(tx, BATCHES, [row.id for row in rows])
    cleared: dict[str, Any] = {"reply": None, "notes": "[]", "error": None}
    tx.execute(update(SHARDS).where(SHARDS.c.batch_id.in_(done)).values(result=None, **cleared))
    stored = update(BATCHES).where(BATCHES.c.id.in_(done))
    tx.execute(stored.values(index_json=None, history_pack="{}", **cleared))
    # Leave frames without files alone: nothing can analyse them, and no batch would take them.
    with_files = and_(SHOTS.c.batch_id.in_(apart), SHOTS.c.storage_state == "stored")
    for event in (WorkEvent.GIVE_BACK, WorkEvent.RETRY, WorkEvent.REOPEN):
        SCREENSHOT.move(tx, SHOTS, event, with_files, error=None, vlm_next_run_at=None, updated_at=tx.now)
    tx.execute(update(SHOTS).where(SHOTS.c.batch_id.in_(apart)).values(batch_id=None))
    tx.execute(delete(BATCHES).where(BATCHES.c.id.in_(apart)))
    announced.note(tx, BATCHES, apart)


def _forget_ledgers(session: Session, since: datetime, until: datetime) -> None:
    """Delete the range's rejections, and the history that later batches stored about it."""
    session.execute(delete(REJECTIONS).where(REJECTIONS.c.ts >= since, REJECTIONS.c.ts < until))
    with_history = and_(BATCHES.c.history_pack != "{}", or_(BATCHES.c.ts_end >= since, BATCHES.c.created_at >= since))
    session.execute(update(BATCHES).where(with_history).values(history_pack="{}"))
