"""Which items are begun: round-robin over bases, the oldest of each first, within the limits of base and fleet.

Rules: docs/sources/knowledge.md#fairness. An item is under way from its admission until it ends; the rows say which
are.
"""

from collections import Counter
from collections.abc import Container, Sequence
from typing import Any

import structlog
from sqlalchemy import ColumnElement, and_, func, select, update
from sqlalchemy.orm import Session

from pipeline.engine.claims import in_states
from pipeline.engine.transaction import Tx
from pipeline.flows.knowledge import live_settings
from pipeline.flows.knowledge.models import BASES, ITEMS
from pipeline.flows.knowledge.rules import workload
from pipeline.flows.knowledge.settings import KnowledgeSettings, own
from pipeline.flows.knowledge.states import ItemStatus
from pipeline.flows.knowledge.work import item
from pipeline.providers import gates
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)

IN_LINE: ColumnElement[bool] = and_(
    in_states(ITEMS, [ItemStatus.PENDING]), ITEMS.c.admitted_at.is_(None), ITEMS.c.deleting.is_(False)
)
"""The item waits for its turn."""
UNDER_WAY: ColumnElement[bool] = ITEMS.c.admitted_at.is_not(None)
BEGUN = (ITEMS.c.admitted_at, ITEMS.c.position, ITEMS.c.id)
"""The order in which items were begun."""


def admit(context: Context) -> list[str]:
    """Begin as many items as there is room for; their ids."""
    limits, shut = live_settings.in_force(context), _shut(context)
    with context.db.read() as session:
        waits = session.execute(select(ITEMS.c.id).where(IN_LINE).limit(1)).first() is not None
        if not waits or _room(session.execute(_under_way()).all(), limits, shut) <= 0:
            return []
    return context.db.run(lambda tx: _admit(tx, limits, shut))


def _shut(context: Context) -> set[str]:
    """The providers that nothing is sent to now. Items that wait for one take no place of the fleet: only of their
    base, so that a provider that is down stops nobody who asks another."""
    if not context.online:
        return set()
    named = own(context.settings).providers
    return {name for name in named if gates.closed_because(context, live_settings.embeddings_queue(name))}


def _under_way() -> Any:
    columns = (ITEMS.c.base_id, ITEMS.c.status, ITEMS.c.workload, ITEMS.c.space, ITEMS.c.batches_left)
    return select(*columns).where(UNDER_WAY)


def _room(under_way: Sequence[Any], limits: KnowledgeSettings, shut: Container[str]) -> int:
    """How many may be begun: of those under way, only some may be read, and the rest wait for vectors."""
    read = sum(row.status != ItemStatus.EMBEDDING for row in under_way)
    stuck = sum(
        row.status == ItemStatus.EMBEDDING and row.batches_left > 0 and row.space.partition(":")[0] in shut
        for row in under_way
    )
    return int(min(limits.global_concurrency - len(under_way) + stuck, limits.io_concurrency - read))


def _admit(tx: Tx, limits: KnowledgeSettings, shut: Container[str]) -> list[str]:
    turn = item.take_turn(tx)
    rows = tx.execute(_under_way()).all()
    room, of_base = _room(rows, limits, shut), Counter(row.base_id for row in rows)
    large = sum(workload.is_large(row.workload, limits.large_mb) for row in rows)
    admitted: list[str] = []
    while room > 0:
        first = _next(tx, [base for base, n in of_base.items() if n >= limits.per_base_concurrency])
        found = None
        for base_id in first:
            # The base before its items: so does everybody who locks both.
            tx.execute(select(BASES.c.id).where(BASES.c.id == base_id).with_for_update())
            row = _oldest(tx, base_id)
            is_large = row is not None and workload.is_large(row.workload, limits.large_mb)
            if row is None or (is_large and large >= workload.most_large(limits.global_concurrency)):
                continue
            found, large = row, large + is_large
            break
        if found is None:
            break
        tx.execute(update(ITEMS).where(ITEMS.c.id == found.id).values(admitted_at=tx.now, updated_at=tx.now))
        tx.execute(update(BASES).where(BASES.c.id == found.base_id).values(turn=turn * 1000 + len(admitted)))
        of_base[found.base_id] += 1
        admitted.append(found.id)
        room -= 1
    return admitted


def _next(session: Session, full: Sequence[str]) -> list[str]:
    """The bases that have items in line and room for one, in the order of their turns."""
    line = select(ITEMS.c.id).where(IN_LINE, ITEMS.c.base_id == BASES.c.id).exists()
    query = select(BASES.c.id).where(line, BASES.c.deleting.is_(False), BASES.c.id.not_in(full))
    return list(session.execute(query.order_by(BASES.c.turn, BASES.c.created_at, BASES.c.id)).scalars())


def _oldest(session: Session, base_id: str) -> Any | None:
    query = select(ITEMS.c.id, ITEMS.c.base_id, ITEMS.c.workload).where(IN_LINE, ITEMS.c.base_id == base_id)
    return session.execute(query.order_by(ITEMS.c.position).limit(1).with_for_update()).first()


def waiting_to_write(session: Session, limits: KnowledgeSettings, claimable: ColumnElement[bool]) -> list[str]:
    """Items whose vectors may be written now: those begun first, as many as there is room for beside those written."""
    written = select(func.count()).select_from(ITEMS).where(UNDER_WAY, ITEMS.c.claim_id.is_not(None))
    busy: int = session.execute(
        written.where(ITEMS.c.status == ItemStatus.EMBEDDING, ITEMS.c.batches_left == 0)
    ).scalar_one()
    room = limits.write_concurrency - busy
    if room <= 0:
        return []
    query = select(ITEMS.c.id).where(UNDER_WAY, claimable).order_by(*BEGUN).limit(room)
    return list(session.execute(query).scalars())
