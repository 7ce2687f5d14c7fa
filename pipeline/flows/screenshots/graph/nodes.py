"""Writes nodes in the transaction that finishes their batch; the origin key prevents duplicates.

Rules: docs/sources/screenshots.md#nodes.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from sqlalchemy import case, delete, insert, select, update
from sqlalchemy.orm import Session

from pipeline.engine.claims import FREE
from pipeline.engine.tables import insert_if_absent
from pipeline.engine.transaction import Tx
from pipeline.flows.screenshots.graph.models import (
    EDGES,
    EMBEDDINGS,
    ENTITIES,
    LINKS,
    MENTIONS,
    NODES,
    PROVENANCE,
    THREADS,
)
from pipeline.flows.screenshots.models import SHOTS
from pipeline.flows.screenshots.rules.expansion import Expansion, PendingNode
from pipeline.flows.screenshots.rules.node_merge import MergeNode
from pipeline.flows.screenshots.rules.schemas import EntityMention, entity_key
from pipeline.flows.screenshots.states import EMBEDDING, Origin, WorkEvent, WorkStatus
from pipeline.storage import vectors
from pipeline.storage.fulltext import FullText, Text

KIND = "screenshot"
"""Kind of the nodes' vectors."""
FULL_TEXT = FullText("screenshot_fts", items="screenshot_nodes", time="event_time")
MAX_KEY = 255
MAX_TITLE = 200
MAX_ENTITIES = 50


@dataclass(frozen=True)
class Content:
    """The content of a node: all fields that a merge changes."""

    title: str
    summary: str = ""
    keywords: tuple[str, ...] = ()
    entities: tuple[EntityMention, ...] = ()
    importance: int = 5
    confidence: int = 5


def content_of_node(node: PendingNode | MergeNode) -> Content:
    """Return the content of a new or merged node."""
    return Content(node.title, node.summary, node.keywords, node.entities, node.importance, node.confidence)


def stored_key(key: str) -> str:
    """Return an origin key as its column stores it: a key of more than `MAX_KEY` characters is cut and ends in its
    hash."""
    if len(key) <= MAX_KEY:
        return key
    return f"{key[: MAX_KEY - 65]}:{hashlib.sha256(key.encode()).hexdigest()}"


def write(tx: Tx, batch_id: int, expansion: Expansion, model: str) -> list[int]:
    """Write a batch's nodes with threads, links, entities, edges, provenance and full text, and request their vectors;
    return new nodes' ids.

    `model`: the name of the text model, for its nodes. Leaves existing nodes alone: they may be merged by now.
    """
    ids: dict[str, int] = {}
    new: list[int] = []
    # Sort threads: two batches that continue the same threads would deadlock in different orders.
    for node in sorted(expansion.nodes, key=lambda node: node.thread_id):
        _keep_thread(tx, node)
    keep_entities(tx, [node.entities for node in expansion.nodes])
    for node in expansion.nodes:
        key = stored_key(node.origin_key)
        content = content_of_node(node)
        row = {
            "kind": node.kind.value,
            "thread_id": node.thread_id,
            "origin_key": key,
            "batch_id": batch_id,
            "event_time": at_ms(node.event_time_ms),
            "made_by": node.made_by.value,
            "own": dump(content),
            "version": 1,
            "status": WorkStatus.PENDING,
            "merged_from_ids": "[]",
            "attempts": 0,
            "created_at": tx.now,
            "updated_at": tx.now,
            **columns(content),
        }
        is_new = insert_if_absent(tx, NODES, row, "origin_key")
        ids[node.origin_key] = tx.execute(select(NODES.c.id).where(NODES.c.origin_key == key)).scalar_one()
        if is_new:
            new.append(ids[node.origin_key])
            _attach(tx, ids[node.origin_key], batch_id, node, model)
    want_vectors(tx, new)
    for edge in expansion.edges:
        ends = ids[edge.from_key], ids[edge.to_key]
        if ends[0] != ends[1] and not set(ends).isdisjoint(new):
            add_edge(tx, *ends, edge.edge_type)
    reindex(tx, new)
    return new


def at_ms(moment_ms: int) -> datetime:
    """Convert ms since 1970 to a time in UTC."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC)


def _keep_thread(tx: Tx, node: PendingNode) -> None:
    at = at_ms(node.event_time_ms)
    row = {"id": node.thread_id, "title": node.title[:MAX_TITLE], "first_at": at, "last_at": at, "created_at": tx.now}
    if not insert_if_absent(tx, THREADS, row):
        # Clocks go backwards, so nodes may come in any order of time.
        first = case((THREADS.c.first_at > at, at), else_=THREADS.c.first_at)
        last = case((THREADS.c.last_at < at, at), else_=THREADS.c.last_at)
        tx.execute(update(THREADS).where(THREADS.c.id == node.thread_id).values(first_at=first, last_at=last))


def _attach(tx: Tx, node_id: int, batch_id: int, node: PendingNode, model: str) -> None:
    links = [{"origin_id": node_id, "shot_id": shot_id, "node_id": node_id} for shot_id in node.screenshot_ids]
    if links:
        tx.execute(insert(LINKS), links)
    mention(tx, node_id, node.entities)
    created = {
        "node_id": node_id,
        "act": "made",
        "batch_id": batch_id,
        "method": node.made_by.value,
        "model": model[:120] if node.made_by is Origin.MODEL else "",
        "created_at": tx.now,
    }
    tx.execute(insert(PROVENANCE).values(**created))


def add_edge(session: Session, from_id: int, to_id: int, kind: str) -> None:
    """Add an edge between two nodes; harmless if it exists."""
    insert_if_absent(session, EDGES, {"from_id": from_id, "to_id": to_id, "type": kind[:40]})


def keep_entities(tx: Tx, mentions: Iterable[Sequence[EntityMention]]) -> None:
    """Write and lock the rows of all entities that a transaction will mention.

    Takes all nodes' entities at once and sorts them: two transactions that add the same names would deadlock in
    different orders.
    """
    by_key = {key: entity for entities in mentions for key, entity in _distinct(entities).items()}
    for key, kind in sorted(by_key):
        row = {"name": by_key[key, kind].name.strip()[:200], "name_key": key, "type": kind, "seen_at": tx.now}
        insert_if_absent(tx, ENTITIES, row, "name_key", "type")
        named = (ENTITIES.c.name_key == key, ENTITIES.c.type == kind)
        tx.execute(update(ENTITIES).where(*named).values(seen_at=tx.now))


def mention(session: Session, node_id: int, entities: Sequence[EntityMention]) -> None:
    """Replace a node's mentions. `keep_entities` has written the entities' rows."""
    session.execute(MENTIONS.delete().where(MENTIONS.c.node_id == node_id))
    for (key, kind), entity in _distinct(entities).items():
        named = select(ENTITIES.c.id).where(ENTITIES.c.name_key == key, ENTITIES.c.type == kind)
        entity_id = session.execute(named).scalar_one()
        session.execute(
            insert(MENTIONS).values(node_id=node_id, entity_id=entity_id, confidence=float(entity.confidence))
        )


def _distinct(entities: Sequence[EntityMention]) -> dict[tuple[str, str], EntityMention]:
    surest: dict[tuple[str, str], EntityMention] = {}
    for entity in entities[:MAX_ENTITIES]:
        key = entity_key(entity.name)[:200], entity.entity_type.strip().casefold()[:40]
        if key[0] and (key not in surest or surest[key].confidence < entity.confidence):
            surest[key] = entity
    return surest


def columns(content: Content) -> dict[str, Any]:
    """Return the columns of a node's row for a content: texts cut to size, lists as JSON."""
    return {
        "title": content.title[:MAX_TITLE],
        "summary": content.summary,
        "keywords": json.dumps(list(content.keywords), ensure_ascii=False),
        "entities": json.dumps([entity.model_dump(by_alias=True) for entity in content.entities], ensure_ascii=False),
        "importance": content.importance,
        "confidence": content.confidence,
    }


def content_of(row: Any) -> Content:
    """Read the content of a node's row."""
    entities = tuple(EntityMention.model_validate(entity) for entity in json.loads(row.entities))
    return Content(row.title, row.summary, tuple(json.loads(row.keywords)), entities, row.importance, row.confidence)


def dump(content: Content) -> str:
    """Serialise a content as JSON."""
    return json.dumps(columns(content), ensure_ascii=False)


def load(text: str) -> Content:
    """Parse the JSON of `dump`."""
    return content_of(SimpleNamespace(**json.loads(text)))


def reindex(session: Session, node_ids: Sequence[int]) -> None:
    """Write the current texts of nodes to the full-text index, in the caller's transaction; skip nodes merged into
    others."""
    FULL_TEXT.put(session, list(texts(session, node_ids).values()))


def unindex(session: Session, node_ids: Sequence[int]) -> None:
    """Remove nodes from the full-text index, and delete their vectors."""
    FULL_TEXT.remove(session, node_ids)
    vectors.remove(session, KIND, node_ids)


def texts(session: Session, node_ids: Sequence[int]) -> Mapping[int, Text]:
    """Return the texts to index, by node id; leave out nodes merged into others."""
    rows = session.execute(select(NODES).where(NODES.c.id.in_(node_ids), NODES.c.merged_into_id.is_(None))).all()
    shots = (
        select(LINKS.c.node_id, SHOTS.c.app, SHOTS.c.app_guess, SHOTS.c.window_title, SHOTS.c.ocr_text)
        .join(SHOTS, SHOTS.c.id == LINKS.c.shot_id)
        .where(LINKS.c.node_id.in_(node_ids))
        .order_by(LINKS.c.node_id, SHOTS.c.id)
    )
    apps: dict[int, dict[str, None]] = {}
    seen: dict[int, dict[str, None]] = {}
    for shot in session.execute(shots):
        apps.setdefault(shot.node_id, {}).update(dict.fromkeys(filter(None, (shot.app, shot.app_guess))))
        seen.setdefault(shot.node_id, {}).update(dict.fromkeys(filter(None, (shot.window_title, shot.ocr_text))))
    indexed = {}
    for row in rows:
        content = content_of(row)
        names = [entity.name for entity in content.entities]
        head = " \n".join([content.title, content.summary, *content.keywords, *names])
        indexed[row.id] = Text(row.id, head, " \n".join(apps.get(row.id, {})), " \n".join(seen.get(row.id, {})))
    return indexed


def root(session: Session, node_id: int) -> int | None:
    """Return the node at the end of a node's merges, or the node itself if it is not merged. None: unknown id.

    A merge cannot make a cycle, because its target is not merged. For a cycle in the data, returns its smallest id.
    """
    seen: set[int] = set()
    while node_id not in seen:
        seen.add(node_id)
        row = session.execute(select(NODES.c.merged_into_id).where(NODES.c.id == node_id)).one_or_none()
        if row is None:
            return None
        if row.merged_into_id is None:
            return node_id
        node_id = row.merged_into_id
    return min(seen)


def want_vectors(tx: Tx, node_ids: Sequence[int]) -> None:
    """Mark the nodes as waiting for vectors of their current texts; workers make them later. A vector of an older text
    is discarded when it arrives."""
    for node_id in sorted(node_ids):
        row = {"id": node_id, "status": WorkStatus.PENDING, "attempts": 0, "created_at": tx.now, "updated_at": tx.now}
        insert_if_absent(tx, EMBEDDINGS, row)
    reset = {**FREE, "attempts": 0, "next_run_at": None, "error": None, "updated_at": tx.now}
    EMBEDDING.move(tx, EMBEDDINGS, WorkEvent.REOPEN, EMBEDDINGS.c.id.in_(node_ids), **reset)


def replace_vector(tx: Tx, target_id: int, node_id: int) -> None:
    """After a merge of `node_id` into `target_id`, request the target's vector anew, and drop the other node's
    request."""
    both = EMBEDDINGS.c.id.in_([target_id, node_id])
    # Lock in the order of ids, so that no deadlock can occur.
    tx.execute(select(EMBEDDINGS.c.id).where(both).order_by(EMBEDDINGS.c.id).with_for_update()).all()
    tx.execute(delete(EMBEDDINGS).where(EMBEDDINGS.c.id == node_id))
    want_vectors(tx, [target_id])
