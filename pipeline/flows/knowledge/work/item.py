"""Shared by an item's units of work: the lock of its row, the leases, and the launches after a unit."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from pipeline.engine.errors import PenstockError, UnitError, told
from pipeline.engine.retry import Policy
from pipeline.engine.tables import insert_if_absent
from pipeline.engine.transaction import Tx
from pipeline.engine.work import Changes
from pipeline.flows.knowledge.models import ITEMS, TURNS
from pipeline.flows.knowledge.settings import own
from pipeline.flows.knowledge.states import FLOW, LINE
from pipeline.settings import Settings

_CALL_MARGIN_S = 60.0


def lock(session: Session, item_id: str) -> Any | None:
    """Lock the item's row until the transaction ends, and return it; None if it is missing or being deleted."""
    query = select(ITEMS).where(ITEMS.c.id == item_id, ITEMS.c.deleting.is_(False)).with_for_update()
    return session.execute(query).one_or_none()


def take_turn(session: Session) -> int:
    """Lock the fleet's turns until the transaction ends, so that it can check the limits of the fleet; return the
    number of this turn. Take it before any item's lock."""
    statement = update(TURNS).where(TURNS.c.id == 1).values(count=TURNS.c.count + 1).returning(TURNS.c.count)
    number: int | None = session.execute(statement).scalar()
    if number is None:
        insert_if_absent(session, TURNS, {"id": 1, "count": 0})
        return take_turn(session)
    return number


def make_room(tx: Tx, item: Any, changes: Changes, *, ended: bool) -> None:
    """After a unit of the item, launch the items that wait for room, and plan the wake-up of a retry.

    `ended`: the item has ended, so it is no longer under way.
    """
    if ended:
        tx.execute(update(ITEMS).where(ITEMS.c.id == item.id).values(admitted_at=None))
    tx.launch(FLOW, LINE)
    tx.wake_in(FLOW, changes.retry_in_s)


def read_policy(settings: Settings) -> Policy:
    """Return the policy of reading: it is retried after a lost worker, and after errors that may pass."""
    return Policy(tuple(own(settings).read_backoff_s))


def read_lease_s(settings: Settings) -> float:
    """Return a lease longer than any reading. The sweep notices a lost worker long before, by its presence."""
    section = own(settings)
    return max(section.read_timeout_s, section.sitemap_timeout_s) + section.fetch_timeout_s + _CALL_MARGIN_S


def call_lease_s(settings: Settings) -> float:
    """Return a lease longer than a call for vectors."""
    return max([profile.timeout_s for profile in settings.providers.values()], default=0.0) + 2 * _CALL_MARGIN_S


def write_lease_s(_: Settings) -> float:
    """Return a lease longer than writing a large item."""
    return 10 * _CALL_MARGIN_S


def as_unit_error(error: Exception, make: Callable[[str], UnitError]) -> UnitError:
    """Return any error as a `UnitError`; `make` turns the message of other errors into one."""
    if isinstance(error, UnitError):
        return error
    return make(told(error) if isinstance(error, PenstockError) else f"unexpected {type(error).__name__}")
