"""Vectors of nodes: which are missing, and storing them. A vector of an outdated text is discarded."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import and_, select, update
from sqlalchemy.orm import Session

from pipeline.flows.screenshots.graph import nodes
from pipeline.flows.screenshots.graph.models import NODES
from pipeline.storage import vectors
from pipeline.storage.context import Context
from pipeline.storage.vectors import Floats

MAX_CHARS = 2000


@dataclass(frozen=True)
class Wanted:
    """A node to embed: its text, and the version of it."""

    node_id: int
    version: int
    text: str


def wanted(context: Context, limit: int) -> list[Wanted]:
    """Nodes without a vector of their text, the oldest first. Not claimed: embedding one twice does no harm."""
    query = select(NODES).where(NODES.c.vector_status == "waiting").order_by(NODES.c.id).limit(limit)
    with context.db.read() as session:
        rows = session.execute(query).all()
    found = []
    for row in rows:
        content = nodes.content_of(row)
        names = ", ".join(entity.name for entity in content.entities)
        parts = [content.title, content.summary, ", ".join(content.keywords), names]
        found.append(Wanted(row.id, row.version, "\n".join(filter(None, parts))[:MAX_CHARS]))
    return found


def store(context: Context, model: str, made: Sequence[tuple[Wanted, Sequence[float] | Floats]]) -> int:
    """Store vectors; how many. Those of a text that has changed, or of a node that is gone, are left out."""

    def work(session: Session) -> int:
        now = datetime.now(UTC)
        kept = []
        for node, vector in sorted(made, key=lambda pair: pair[0].node_id):
            mine = and_(NODES.c.id == node.node_id, NODES.c.version == node.version, NODES.c.vector_status != "none")
            done = update(NODES).where(mine).values(vector_status="done", vector_error=None).returning(NODES.c.id)
            if session.execute(done).first() is not None:
                kept.append((node.node_id, vector))
        return vectors.upsert(session, nodes.KIND, model, kept, now)

    return context.db.run(work)


def give_up(context: Context, node: Wanted, error: str) -> None:
    """Note that this text cannot be embedded. A change of it, or a replay, tries again."""
    mine = and_(NODES.c.id == node.node_id, NODES.c.version == node.version, NODES.c.vector_status == "waiting")
    context.db.run(
        lambda session: session.execute(
            update(NODES).where(mine).values(vector_status="failed", vector_error=error[:2000])
        )
    )
