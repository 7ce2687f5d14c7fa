"""Statements of accounts, and the retention of their entries."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from sqlalchemy import select

from pipeline.engine import accounts
from pipeline.engine.accounts import CHARGES, RESERVATIONS
from pipeline.engine.views import view_of
from pipeline.engine.wire import HIDDEN, VIEW
from pipeline.storage.context import Context
from pipeline.storage.retention import Retention, Rule, rows

KEPT_DAYS = 90
"""How long charges and ended reservations stay. A call for work requested earlier appears on no account."""


@dataclass(frozen=True)
class ChargeView:
    """One charge, as the account lists it."""

    __pydantic_config__ = VIEW
    id: Annotated[int, HIDDEN]
    at: datetime
    """When the call began."""
    flow: str
    scope_id: str
    """Its subject: a document, an item, a batch, a run."""
    unit: str
    """The part of it, such as a page."""
    operation: str
    provider: str
    model: str
    cost: float
    """By the provider's prices: your share, if other keys requested it too."""


@dataclass(frozen=True)
class ReservationView:
    """Money reserved for unfinished work."""

    __pydantic_config__ = VIEW
    flow: str
    item_id: str
    unit: str
    amount: float
    """The estimate at admission."""
    charged: float
    """The cost of its calls so far."""
    began_at: datetime
    ends_at: datetime | None
    """Set when the work is cut off: calls in flight are paid for by then."""


@dataclass(frozen=True)
class Statement:
    """Today's balance of an account, its open reservations, and its charges, newest first."""

    owner: str
    cap: float
    spent: float
    reserved: float
    since: datetime
    reservations: Sequence[ReservationView]
    charges: Sequence[ChargeView]


def statement(context: Context, owner: str, limit: int, before: int | None = None) -> Statement:
    """Return the account of `owner`, a key's id: today's balance, the newest open reservations, and the newest charges
    of any day. `before`: only charges with a lower id."""
    now = context.db.now()
    own = select(RESERVATIONS).where(RESERVATIONS.c.owner == owner, accounts.counts(now))
    open_ = own.order_by(RESERVATIONS.c.id.desc()).limit(limit)
    older = [CHARGES.c.id < before] if before is not None else []
    charged = select(CHARGES).where(CHARGES.c.owner == owner, *older).order_by(CHARGES.c.id.desc()).limit(limit)
    with context.db.read() as session:
        balance = accounts.balance(session, owner)
        return Statement(
            owner,
            accounts.cap(session),
            balance.spent,
            balance.reserved,
            balance.since,
            [view_of(ReservationView, row) for row in session.execute(open_)],
            [view_of(ChargeView, row) for row in session.execute(charged)],
        )


def expired(context: Context) -> list[Retention]:
    """Return the retention of charges and of ended reservations: `KEPT_DAYS` days."""
    rule, old = Rule(KEPT_DAYS, 0), context.db.now() - timedelta(days=KEPT_DAYS)
    return [
        rows("charges of keys", rule, CHARGES.c.id, CHARGES.c.at),
        rows("reservations of keys", rule, RESERVATIONS.c.id, RESERVATIONS.c.began_at, RESERVATIONS.c.ends_at < old),
    ]
