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
"""How long charges and ended reservations stay. A call for work that was asked for before is on no account."""


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
    """By the provider's prices: your share, where others asked for it, too."""


@dataclass(frozen=True)
class ReservationView:
    """What is reserved for work that has not ended."""

    __pydantic_config__ = VIEW
    flow: str
    item_id: str
    unit: str
    amount: float
    """The estimate, when it was admitted."""
    charged: float
    """What its calls have cost so far."""
    began_at: datetime
    ends_at: datetime | None
    """It was cut off: calls under way are paid for by then."""


@dataclass(frozen=True)
class Statement:
    """Today's balance of an account, its open reservations, and its charges, the newest first."""

    owner: str
    cap: float
    spent: float
    reserved: float
    since: datetime
    reservations: Sequence[ReservationView]
    charges: Sequence[ChargeView]


def statement(context: Context, owner: str, limit: int, before: int | None = None) -> Statement:
    """The account of a caller, by the id of its key. `before`: only charges that were written down before this one."""
    now = context.db.now()
    mine = select(RESERVATIONS).where(RESERVATIONS.c.owner == owner, accounts.counts(now))
    open_ = mine.order_by(RESERVATIONS.c.id.desc()).limit(limit)
    older = [CHARGES.c.id < before] if before is not None else []
    charged = select(CHARGES).where(CHARGES.c.owner == owner, *older).order_by(CHARGES.c.id.desc()).limit(limit)
    with context.db.read() as session:
        stands = accounts.balance(session, owner)
        return Statement(
            owner,
            accounts.cap(session),
            stands.spent,
            stands.reserved,
            stands.since,
            [view_of(ReservationView, row) for row in session.execute(open_)],
            [view_of(ChargeView, row) for row in session.execute(charged)],
        )


def expired(context: Context) -> list[Retention]:
    """Entries that are older, for clean-up."""
    rule, old = Rule(KEPT_DAYS, 0), context.db.now() - timedelta(days=KEPT_DAYS)
    return [
        rows("charges of keys", rule, CHARGES.c.id, CHARGES.c.at),
        rows("reservations of keys", rule, RESERVATIONS.c.id, RESERVATIONS.c.began_at, RESERVATIONS.c.ends_at < old),
    ]
