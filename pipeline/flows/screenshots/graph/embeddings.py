"""Which nodes are to have a vector of their text. Called by whoever writes the text, in the same transaction."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from pipeline.engine.claims import FREE
from pipeline.engine.tables import insert_if_absent
from pipeline.flows.screenshots.graph.models import EMBEDDINGS
from pipeline.flows.screenshots.states import EMBEDDING, WorkEvent, WorkStatus


def want(session: Session, node_ids: Sequence[int], now: datetime) -> None:
    """Have vectors made of what these nodes say now. One that is being made of an older text will be discarded."""
    for node_id in sorted(node_ids):
        row = {"id": node_id, "status": WorkStatus.PENDING, "attempts": 0, "created_at": now, "updated_at": now}
        insert_if_absent(session, EMBEDDINGS, row)
    again = {**FREE, "attempts": 0, "next_run_at": None, "error": None, "updated_at": now}
    EMBEDDING.move(session, EMBEDDINGS, WorkEvent.REOPEN, EMBEDDINGS.c.id.in_(node_ids), **again)


def replace(session: Session, target_id: int, node_id: int, now: datetime) -> None:
    """A node went into another: that one's vector is to be made anew, and the node has none any more."""
    both = EMBEDDINGS.c.id.in_([target_id, node_id])
    # In one order everywhere: two transactions must not wait for each other.
    session.execute(select(EMBEDDINGS.c.id).where(both).order_by(EMBEDDINGS.c.id).with_for_update()).all()
    session.execute(delete(EMBEDDINGS).where(EMBEDDINGS.c.id == node_id))
    want(session, [target_id], now)
