"""Admits items from the line: round-robin over bases, the oldest of each first, within the limits of base and fleet.

Rules: docs/sources/knowledge.md#fairness. An item is under way from its admission until it ends; the rows say which
are.
"""

from collections import Counter
from collections.abc import Container, Sequence
from typing import Any

import structlog
from sqlalchemy import ColumnElement, and_, func, select, update
from sqlalchemy.orm import Session

from pipeline.engine.claims import in_states, is_due
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
"""The condition that an item waits in line, or for the retry of its reading."""
UNDER_WAY: ColumnElement[bool] = ITEMS.c.admitted_at.is_not(None)
ADMISSION_ORDER = (ITEMS.c.admitted_at, ITEMS.c.position, ITEMS.c.id)
"""The order in which items were admitted."""


def admit(context: Context) -> list[str]:
    """Move as many items from the line to under way as the limits allow, and return their ids."""
    limits, closed = live_settings.in_force(context), _closed_providers(context)
    with context.db.read() as session:
        due = select(ITEMS.c.id).where(IN_LINE, is_due(ITEMS, session.now))
        waits = session.execute(due.limit(1)).first() is not None
        if not waits or _room(session.execute(_under_way()).all(), limits, closed) <= 0:
            return []
    return context.db.run(lambda tx: _admit(tx, limits, closed))


def _closed_providers(context: Context) -> set[str]:
    """Return the providers whose gates are closed. Items that wait for such a provider count for their base, but not
    for the fleet, so that they do not block items of other providers."""
    if not context.online:
        return set()
    names = own(context.settings).providers
    return {name for name in names if gates.closed_because(context, live_settings.embeddings_queue(name))}


def _under_way() -> Any:
    sizes = (ITEMS.c.workload, ITEMS.c.size_bytes)
    columns = (ITEMS.c.base_id, ITEMS.c.status, *sizes, ITEMS.c.space, ITEMS.c.batches_left)
    return select(*columns).where(UNDER_WAY)


def _room(under_way: Sequence[Any], limits: KnowledgeSettings, closed: Container[str]) -> int:
    """Return how many items the fleet may still admit: the smaller rest of the limits of items under way and being
    read. May be negative.

    `closed`: the names of providers with closed gates; items that wait for their vectors do not count as under way.
    """
    read = sum(row.status != ItemStatus.EMBEDDING for row in under_way)
    stuck = sum(
        row.status == ItemStatus.EMBEDDING and row.batches_left > 0 and row.space.partition(":")[0] in closed
        for row in under_way
    )
    return int(min(limits.global_concurrency - len(under_way) + stuck, limits.io_concurrency - read))


def _admit(tx: Tx, limits: KnowledgeSettings, closed: Container[str]) -> list[str]:
    turn = item.take_turn(tx)
    rows = tx.execute(_under_way()).all()
    room, of_base = _room(rows, limits, closed), Counter(row.base_id for row in rows)
    large = sum(workload.is_large(row.workload, row.size_bytes, limits.large_mb) for row in rows)
    admitted: list[str] = []
    while room > 0:
        first = _next(tx, [base for base, n in of_base.items() if n >= limits.per_base_concurrency])
        chosen = None
        for base_id in first:
            # Lock the base before its items, as every transaction does that locks both.
            tx.execute(select(BASES.c.id).where(BASES.c.id == base_id).with_for_update())
            row = _oldest(tx, base_id)
            is_large = row is not None and workload.is_large(row.workload, row.size_bytes, limits.large_mb)
            if row is None or (is_large and large >= workload.most_large(limits.global_concurrency)):
                continue
            chosen, large = row, large + is_large
            break
        if chosen is None:
            break
        tx.execute(update(ITEMS).where(ITEMS.c.id == chosen.id).values(admitted_at=tx.now, updated_at=tx.now))
        tx.execute(update(BASES).where(BASES.c.id == chosen.base_id).values(turn=turn * 1000 + len(admitted)))
        of_base[chosen.base_id] += 1
        admitted.append(chosen.id)
        room -= 1
    return admitted


def _next(tx: Tx, full: Sequence[str]) -> list[str]:
    """Return the ids of bases with due items in line, except the `full` ones, in the order of their turns."""
    line = select(ITEMS.c.id).where(IN_LINE, is_due(ITEMS, tx.now), ITEMS.c.base_id == BASES.c.id).exists()
    query = select(BASES.c.id).where(line, BASES.c.deleting.is_(False), BASES.c.id.not_in(full))
    return list(tx.execute(query.order_by(BASES.c.turn, BASES.c.created_at, BASES.c.id)).scalars())


def _oldest(tx: Tx, base_id: str) -> Any | None:
    columns = (ITEMS.c.id, ITEMS.c.base_id, ITEMS.c.workload, ITEMS.c.size_bytes)
    query = select(*columns).where(IN_LINE, is_due(ITEMS, tx.now), ITEMS.c.base_id == base_id)
    return tx.execute(query.order_by(ITEMS.c.position).limit(1).with_for_update()).first()


def waiting_to_write(session: Session, limits: KnowledgeSettings, claimable: ColumnElement[bool]) -> list[str]:
    """Return the ids of the items whose vectors may be written now: the first admitted, as far as writers are free."""
    held = select(func.count()).select_from(ITEMS).where(UNDER_WAY, ITEMS.c.claim_id.is_not(None))
    busy: int = session.execute(
        held.where(ITEMS.c.status == ItemStatus.EMBEDDING, ITEMS.c.batches_left == 0)
    ).scalar_one()
    room = limits.write_concurrency - busy
    if room <= 0:
        return []
    query = select(ITEMS.c.id).where(UNDER_WAY, claimable).order_by(*ADMISSION_ORDER).limit(room)
    return list(session.execute(query).scalars())
