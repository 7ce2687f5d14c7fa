"""Writing nodes: in the transaction that finishes their batch, each once by its origin key. Source 000, section 1.6."""

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import case, insert, select, update
from sqlalchemy.orm import Session

from pipeline.engine.tables import insert_if_absent
from pipeline.screenshots.graph import fulltext
from pipeline.screenshots.graph.models import EDGES, ENTITIES, LINKS, MENTIONS, NODES, PROVENANCE, THREADS
from pipeline.screenshots.models import SHOTS
from pipeline.screenshots.states import WorkStatus

KIND = "screenshot"
"""Of their vectors."""
MAX_KEY = 255
MAX_TITLE = 200
MAX_ENTITIES = 50


@dataclass(frozen=True)
class EntityMention:
    """A name that a node mentions; `confidence` 0 to 1."""

    name: str
    type: str = ""
    confidence: float = 0.0


@dataclass(frozen=True)
class Content:
    """What a node says: everything that a merge changes."""

    title: str
    summary: str = ""
    keywords: tuple[str, ...] = ()
    entities: tuple[EntityMention, ...] = ()
    importance: int = 5
    confidence: int = 5


@dataclass(frozen=True)
class Draft:
    """A node to write. `thread`: what the model says, which may not exist; None: a thread of its own, or its event's.

    `derived_from`: index of the draft of its event, whose thread it inherits.
    """

    kind: str
    content: Content
    event_time: datetime
    shot_ids: Sequence[int]
    thread: str | None = None
    derived_from: int | None = None
    segment_id: str = ""
    method: str = "model"
    model: str = ""
    origin_key: str = ""
    """Where the caller has made it already; at most `MAX_KEY` characters."""


def origin_key(batch_key: str, shot_ids: Iterable[int], kind: str, ordinal: int) -> str:
    """`ctx_node:BATCH:ss:SHOTS:KIND:ORDINAL`; the end of what is too long is its hash."""
    shots = ",".join(str(shot_id) for shot_id in sorted(set(shot_ids)))
    key = f"ctx_node:{batch_key}:ss:{shots}:{kind}:{ordinal}"
    if len(key) <= MAX_KEY:
        return key
    return f"{key[: MAX_KEY - 65]}:{hashlib.sha256(key.encode()).hexdigest()}"


def write(session: Session, batch: Any, drafts: Sequence[Draft], now: datetime) -> list[int]:
    """Write a batch's nodes with threads, links, entities, edges, provenance and full text; their ids, in order.

    What is there already is left as it is: it may have been merged since.
    """
    allowed = set(json.loads(batch.shot_ids))
    threads = _threads(session, batch, drafts, now)
    made: list[int] = []
    new: list[int] = []
    ordinals: dict[str, int] = {}
    for index, draft in enumerate(drafts):
        # A model may name frames that it was not shown; a node without any rests on the whole batch.
        shots = sorted(allowed & set(draft.shot_ids)) or sorted(allowed)
        ordinals[draft.kind] = ordinals.get(draft.kind, -1) + 1
        key = draft.origin_key or origin_key(batch.idempotency_key, shots, draft.kind, ordinals[draft.kind])
        row = {
            "kind": draft.kind[:20], "thread_id": threads[index], "origin_key": key, "batch_id": batch.id,
            "event_time": draft.event_time, "own": dump(draft.content), "version": 1, "status": WorkStatus.PENDING,
            "merged_from_ids": "[]", "vector_status": "waiting", "attempts": 0, "created_at": now, "updated_at": now,
            **columns(draft.content),
        }  # fmt: skip
        is_new = insert_if_absent(session, NODES, row, "origin_key")
        node_id = session.execute(select(NODES.c.id).where(NODES.c.origin_key == key)).scalar_one()
        made.append(node_id)
        if is_new:
            new.append(node_id)
            _attach(session, node_id, batch.id, draft, shots, now)
    _derive(session, drafts, made)
    reindex(session, new)
    return made


def _threads(session: Session, batch: Any, drafts: Sequence[Draft], now: datetime) -> list[str]:
    """A thread for each draft: the one that the model named if it exists, else a new one of this batch's."""
    named = {draft.thread for draft in drafts if draft.thread}
    known = set(session.execute(select(THREADS.c.id).where(THREADS.c.id.in_(named))).scalars())
    found: list[str] = []
    for index, draft in enumerate(drafts):
        parent = draft.derived_from
        if parent is not None and 0 <= parent < index:
            found.append(found[parent])
            continue
        # Drafts that share an invented name share a thread; the same batch, written again, gives the same one.
        name = draft.thread or f"{index}"
        thread = name if name in known else _thread_id(batch.idempotency_key, name)
        found.append(thread)
        row = {
            "id": thread, "title": draft.content.title[:MAX_TITLE], "first_at": draft.event_time,
            "last_at": draft.event_time, "created_at": now,
        }  # fmt: skip
        if not insert_if_absent(session, THREADS, row):
            _stretch(session, thread, draft.event_time)
    return found


def _thread_id(batch_key: str, name: str) -> str:
    digest = hashlib.sha256("\n".join([batch_key, name]).encode()).hexdigest()
    return f"thread_{digest[:20]}"


def _stretch(session: Session, thread: str, at: datetime) -> None:
    """Clocks go backwards: a thread begins with its earliest node and ends with its latest, whichever came last."""
    first = case((THREADS.c.first_at > at, at), else_=THREADS.c.first_at)
    last = case((THREADS.c.last_at < at, at), else_=THREADS.c.last_at)
    session.execute(update(THREADS).where(THREADS.c.id == thread).values(first_at=first, last_at=last))


def _attach(session: Session, node_id: int, batch_id: int, draft: Draft, shots: Sequence[int], now: datetime) -> None:
    links = [{"origin_id": node_id, "shot_id": shot_id, "node_id": node_id} for shot_id in shots]
    if links:
        session.execute(insert(LINKS), links)
    mention(session, node_id, draft.content.entities, now)
    row = {
        "node_id": node_id, "act": "made", "batch_id": batch_id, "segment_id": draft.segment_id[:80],
        "method": draft.method[:20], "model": draft.model[:120], "created_at": now,
    }  # fmt: skip
    session.execute(insert(PROVENANCE).values(**row))


def _derive(session: Session, drafts: Sequence[Draft], made: Sequence[int]) -> None:
    for draft, node_id in zip(drafts, made, strict=True):
        parent = draft.derived_from
        if parent is not None and 0 <= parent < len(made) and made[parent] != node_id:
            add_edge(session, node_id, made[parent], "derived_from")


def add_edge(session: Session, from_id: int, to_id: int, kind: str) -> None:
    """Relate two nodes; harmless if they are."""
    insert_if_absent(session, EDGES, {"from_id": from_id, "to_id": to_id, "type": kind[:40]})


def mention(session: Session, node_id: int, entities: Sequence[EntityMention], now: datetime) -> None:
    """What a node mentions, in place of what it mentioned before."""
    session.execute(MENTIONS.delete().where(MENTIONS.c.node_id == node_id))
    # In one order everywhere: two transactions that add the same names must not wait for each other.
    for (key, kind), found in sorted(_distinct(entities).items()):
        row = {"name": found.name.strip()[:200], "name_key": key, "type": kind, "seen_at": now}
        insert_if_absent(session, ENTITIES, row, "name_key", "type")
        mine = (ENTITIES.c.name_key == key, ENTITIES.c.type == kind)
        seen = update(ENTITIES).where(*mine).values(seen_at=now).returning(ENTITIES.c.id)
        entity_id = session.execute(seen).scalar_one()
        session.execute(
            insert(MENTIONS).values(node_id=node_id, entity_id=entity_id, confidence=float(found.confidence))
        )


def _distinct(entities: Sequence[EntityMention]) -> dict[tuple[str, str], EntityMention]:
    found: dict[tuple[str, str], EntityMention] = {}
    for entity in entities[:MAX_ENTITIES]:
        key = name_key(entity.name), entity.type.strip().casefold()[:40]
        if key[0] and (key not in found or found[key].confidence < entity.confidence):
            found[key] = entity
    return found


def name_key(name: str) -> str:
    """What makes two spellings of a name one."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())[:200]


def columns(content: Content) -> dict[str, Any]:
    """A content as columns of a node."""
    return {
        "title": content.title[:MAX_TITLE], "summary": content.summary,
        "keywords": json.dumps(list(content.keywords), ensure_ascii=False),
        "entities": json.dumps([asdict(entity) for entity in content.entities], ensure_ascii=False),
        "importance": content.importance, "confidence": content.confidence,
    }  # fmt: skip


def content_of(row: Any) -> Content:
    """What a node's row says."""
    entities = tuple(EntityMention(**entity) for entity in json.loads(row.entities))
    keywords = tuple(json.loads(row.keywords))
    return Content(row.title, row.summary, keywords, entities, row.importance, row.confidence)


def dump(content: Content) -> str:
    """A content as JSON."""
    return json.dumps(asdict(content), ensure_ascii=False)


def load(text: str) -> Content:
    """What `dump` wrote."""
    data: dict[str, Any] = json.loads(text)
    entities = tuple(EntityMention(**entity) for entity in data.pop("entities"))
    content = Content(**data, entities=entities)
    return replace(content, keywords=tuple(content.keywords))


def reindex(session: Session, node_ids: Sequence[int]) -> None:
    """Full text of nodes as they are now, in the caller's transaction: it is never behind."""
    fulltext.put(session, list(texts(session, node_ids).values()))


def texts(session: Session, node_ids: Sequence[int]) -> Mapping[int, fulltext.Text]:
    """What nodes are found by; those that went into another are not."""
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
    found = {}
    for row in rows:
        content = content_of(row)
        names = [entity.name for entity in content.entities]
        head = " \n".join([content.title, content.summary, *content.keywords, *names])
        found[row.id] = fulltext.Text(row.id, head, " \n".join(apps.get(row.id, {})), " \n".join(seen.get(row.id, {})))
    return found
