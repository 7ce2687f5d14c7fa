"""Searching nodes: full text and vectors, fused by reciprocal rank; and how much is indexed so far."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Union

from sqlalchemy import Column, func, literal, select, union_all
from sqlalchemy.orm import Session

from pipeline.engine.errors import UserError
from pipeline.engine.views import view_of
from pipeline.flows.screenshots.graph import nodes
from pipeline.flows.screenshots.graph.models import EMBEDDINGS, LINKS, NODES
from pipeline.flows.screenshots.models import SHOTS
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.flows.screenshots.views import Found, Hit, NodeView, Progress
from pipeline.storage.context import Context
from pipeline.storage.fusion import fuse, ranks

if TYPE_CHECKING:
    from pipeline.storage.vectors.codes import Floats

MAX_LIMIT = 200
_DEPTH = 100
"""How deep each of the two lists is read, at least."""
_DEPTH_FILTERED = 500
"""How deep the list of vectors is read for what passes a filter that lets many nodes through."""
_FEW = 3000
"""If at most this many nodes pass a filter, only their vectors are compared."""

_SPARE = 10
"""Nodes read beyond those asked for, in case some are merged away between two statements."""
_TOTAL = "*"


@dataclass(frozen=True)
class QueryVector:
    """The query, embedded by the caller; only nodes' vectors of the same model are compared."""

    model: str
    values: Union[Sequence[float], "Floats"]
    floor: float = 0.0
    """A node is a hit only if its cosine with the query is above this, however few hits there are."""


def search(
    context: Context,
    words: str,
    *,
    vector: QueryVector | None = None,
    since: datetime | None = None,
    app: str = "",
    limit: int = 10,
) -> Found:
    """Nodes for these words, best first; without a vector, by full text alone. Raises `UserError` for no words."""
    if not words.strip():
        raise UserError("say what to look for", code="empty_query")
    limit = max(1, min(limit, MAX_LIMIT))
    depth = max(_DEPTH, 2 * limit)
    with context.db.read() as session:
        by_text = nodes.FULL_TEXT.search(session, words, depth, since=since, app=app)
        if len(by_text) < limit and len(words.split()) > 1:
            more = nodes.FULL_TEXT.search(session, words, depth, since=since, app=app, any_word=True)
            by_text += [node_id for node_id in more if node_id not in set(by_text)]
        by_vector = _by_vector(session, vector, depth, since, app)
        text_rank, vector_rank = ranks(by_text), ranks(by_vector)
        best = fuse(text_rank, vector_rank)[: limit + _SPARE]
        facts = _facts(session, [node_id for node_id, _ in best])
        hits = [
            Hit(facts[node_id][0], round(score, 5), text_rank.get(node_id), vector_rank.get(node_id), facts[node_id][1])
            for node_id, score in best
            if node_id in facts
        ][:limit]
        return Found(hits, *_coverage(session), lexical=False)


def _by_vector(session: Session, vector: QueryVector | None, depth: int, since: datetime | None, app: str) -> list[int]:
    if vector is None:
        return []
    if since is None and not app:
        return _near(session, vector, depth)
    few = nodes.FULL_TEXT.narrowed(session, _FEW + 1, since=since, app=app)
    if len(few) <= _FEW:
        return _near(session, vector, depth, few)
    near = _near(session, vector, max(_DEPTH_FILTERED, 3 * depth))
    passing = set(nodes.FULL_TEXT.narrowed(session, len(near), since=since, app=app, among=near))
    return [node_id for node_id in near if node_id in passing][:depth]


def _near(session: Session, vector: QueryVector, depth: int, among: Sequence[int] | None = None) -> list[int]:
    from pipeline.storage.vectors import nearest  # noqa: PLC0415  # only searches need numpy

    hits = nearest.search(session, nodes.KIND, vector.model, vector.values, depth, among=among)
    return [hit.item_id for hit in hits if hit.score > vector.floor]


def _facts(session: Session, ids: Sequence[int]) -> dict[int, tuple[NodeView, list[str]]]:
    """(node, apps) of the nodes that were not merged into others."""
    rows = session.execute(select(NODES).where(NODES.c.id.in_(ids))).all()
    seen = (
        select(LINKS.c.node_id, SHOTS.c.app, SHOTS.c.app_guess)
        .join(SHOTS, SHOTS.c.id == LINKS.c.shot_id)
        .where(LINKS.c.node_id.in_(ids))
        .distinct()
    )
    apps: dict[int, set[str]] = {}
    for node_id, app, guess in session.execute(seen):
        apps.setdefault(node_id, set()).update(filter(None, (app, guess)))
    return {
        row.id: (view_of(NodeView, row), sorted(apps.get(row.id, ()))) for row in rows if row.merged_into_id is None
    }


def _coverage(session: Session) -> tuple[Progress, Progress]:
    shots = _count_by(session, SHOTS.c.status, WorkStatus.SUCCEEDED)
    done, failed = shots.get(WorkStatus.SUCCEEDED, 0), shots.get(WorkStatus.FAILED_PERMANENT, 0)
    made = _count_by(session, EMBEDDINGS.c.status, WorkStatus.SUCCEEDED)
    embedded, not_embedded = made.get(WorkStatus.SUCCEEDED, 0), made.get(WorkStatus.FAILED_PERMANENT, 0)
    return (
        Progress(done, sum(shots.values()) - done - failed, failed),
        Progress(embedded, sum(made.values()) - embedded - not_embedded, not_embedded),
    )


def _count_by(session: Session, column: Column[Any], usual: str) -> dict[str, int]:
    """How many rows have which value.

    The usual value, which nearly all rows have, is what the others leave of the total: to count a whole table SQLite
    reads one number a page, to count a part of it each row.
    """
    others = (select(column, func.count()).where(they).group_by(column) for they in (column < usual, column > usual))
    # One statement: counts of different moments need not add up.
    query = union_all(select(literal(_TOTAL), func.count()).select_from(column.table), *others)
    counted: dict[str, int] = {value: count for value, count in session.execute(query)}  # noqa: C416  # rows are not pairs
    total = counted.pop(_TOTAL)
    return {**counted, usual: total - sum(counted.values())}
