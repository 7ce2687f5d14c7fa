"""Searches nodes by full text and vectors, fuses both by reciprocal rank, and counts what is indexed so far."""

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
from pipeline.flows.screenshots.views import Hit, NodeView, Progress, SearchResult
from pipeline.storage.context import Context
from pipeline.storage.fusion import fuse, ranks

if TYPE_CHECKING:
    from pipeline.storage.vectors.codes import Floats

MAX_LIMIT = 200
_DEPTH = 100
"""Fewest hits to read from each of the two lists."""
_DEPTH_FILTERED = 500
"""Fewest hits to read from the vectors if many nodes pass the filter."""
_FEW = 3000
"""If at most this many nodes pass the filter, compare only their vectors."""

_EXTRA_HITS = 10
"""Hits to read beyond the limit, because merges may remove some between two statements."""
_TOTAL = "*"


@dataclass(frozen=True)
class QueryVector:
    """The query's vector. Search compares it only with nodes' vectors of the same model."""

    model: str
    values: Union[Sequence[float], "Floats"]
    floor: float = 0.0
    """Only nodes whose cosine with the query is above this are hits."""


def search(
    context: Context,
    words: str,
    *,
    vector: QueryVector | None = None,
    since: datetime | None = None,
    app: str = "",
    limit: int = 10,
) -> SearchResult:
    """Search nodes that are not merged into others, best first, by full text and `vector`; None: full text alone.
    `since`: the earliest time of a node. `app`: words of a program's name.

    If few nodes have all words, nodes with some of them are hits, too. `limit` is at most 200. Raises `UserError`
    without words.
    """
    if not words.strip():
        raise UserError("the query is empty", code="empty_query")
    limit = max(1, min(limit, MAX_LIMIT))
    depth = max(_DEPTH, 2 * limit)
    with context.db.read() as session:
        by_text = nodes.FULL_TEXT.search(session, words, depth, since=since, app=app)
        if len(by_text) < limit and len(words.split()) > 1:
            more = nodes.FULL_TEXT.search(session, words, depth, since=since, app=app, any_word=True)
            by_text += [node_id for node_id in more if node_id not in set(by_text)]
        by_vector = _by_vector(session, vector, depth, since, app)
        text_rank, vector_rank = ranks(by_text), ranks(by_vector)
        best = fuse(text_rank, vector_rank)[: limit + _EXTRA_HITS]
        facts = _facts(session, [node_id for node_id, _ in best])
        hits = [
            Hit(facts[node_id][0], round(score, 5), text_rank.get(node_id), vector_rank.get(node_id), facts[node_id][1])
            for node_id, score in best
            if node_id in facts
        ][:limit]
        return SearchResult(hits, *_coverage(session), lexical=False)


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
    """Return (node, its programs) by id; leave out nodes merged into others."""
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
    vectors = _count_by(session, EMBEDDINGS.c.status, WorkStatus.SUCCEEDED)
    embedded, not_embedded = vectors.get(WorkStatus.SUCCEEDED, 0), vectors.get(WorkStatus.FAILED_PERMANENT, 0)
    return (
        Progress(done, sum(shots.values()) - done - failed, failed),
        Progress(embedded, sum(vectors.values()) - embedded - not_embedded, not_embedded),
    )


def _count_by(session: Session, column: Column[Any], usual: str) -> dict[str, int]:
    """Count all rows of the column's table by the column's value.

    Nearly all rows have the `usual` value: subtract the others from the total. To count a whole table, SQLite reads one
    number a page; to count part of a table, it reads each row.
    """
    others = (select(column, func.count()).where(they).group_by(column) for they in (column < usual, column > usual))
    # One statement: counts from different times might not add up.
    query = union_all(select(literal(_TOTAL), func.count()).select_from(column.table), *others)
    counted: dict[str, int] = {value: count for value, count in session.execute(query)}  # noqa: C416  # rows are not pairs
    total = counted.pop(_TOTAL)
    return {**counted, usual: total - sum(counted.values())}
