"""An item's row, as all of its units of work know it: its lock, its leases, and what follows when it ends."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from pipeline.engine.errors import PenstockError, UnitError
from pipeline.engine.retry import Policy
from pipeline.engine.tables import insert_if_absent
from pipeline.engine.transaction import Tx
from pipeline.engine.work import Changes
from pipeline.flows.knowledge.models import ITEMS, TURNS
from pipeline.flows.knowledge.settings import own
from pipeline.flows.knowledge.states import FLOW, LINE
from pipeline.settings import Settings

LOST_TRIES = (1.0, 5.0)
"""Waits of work that is only tried again when its worker was lost, or the machine had a hiccup."""
_CALL_MARGIN_S = 60.0


def lock(session: Session, item_id: str) -> Any | None:
    """The item's row, locked until the transaction ends; None if there is none, or if it is being deleted."""
    query = select(ITEMS).where(ITEMS.c.id == item_id, ITEMS.c.deleting.is_(False)).with_for_update()
    return session.execute(query).one_or_none()


def take_turn(session: Session) -> int:
    """The number of this turn. Whoever has it is alone until the transaction ends: limits of the fleet are counted
    then. Take it before any item's lock."""
    statement = update(TURNS).where(TURNS.c.id == 1).values(count=TURNS.c.count + 1).returning(TURNS.c.count)
    number: int | None = session.execute(statement).scalar()
    if number is None:
        insert_if_absent(session, TURNS, {"id": 1, "count": 0})
        return take_turn(session)
    return number


def make_room(tx: Tx, item: Any, changes: Changes, *, ended: bool) -> None:
    """After a unit of the item: launch the items that wait for room, and plan the wake-up of a retry.

    `ended`: the item, one way or the other, so it is not under way any more.
    """
    if ended:
        tx.execute(update(ITEMS).where(ITEMS.c.id == item.id).values(admitted_at=None))
    tx.launch(FLOW, LINE)
    tx.wake_in(FLOW, changes.retry_in_s)


def lost_policy(_: Settings) -> Policy:
    """For work that is not tried again for its own errors, which are permanent: only a lost worker's is."""
    return Policy(LOST_TRIES)


def read_lease_s(settings: Settings) -> float:
    """Longer than reading anything takes. A lost worker is noticed by its absence, long before."""
    found = own(settings)
    return max(found.read_timeout_s, found.sitemap_timeout_s) + found.fetch_timeout_s + _CALL_MARGIN_S


def call_lease_s(settings: Settings) -> float:
    """Longer than a call for vectors takes."""
    return max([one.timeout_s for one in settings.providers.values()], default=0.0) + 2 * _CALL_MARGIN_S


def write_lease_s(_: Settings) -> float:
    """Longer than writing even a large item takes."""
    return 10 * _CALL_MARGIN_S


def as_unit_error(error: Exception, make: Callable[[str], UnitError]) -> UnitError:
    """Any error as one that a row can hold; `make` gives it its kind where it says nothing of itself."""
    if isinstance(error, UnitError):
        return error
    return make(str(error) if isinstance(error, PenstockError) else f"unexpected {type(error).__name__}")
