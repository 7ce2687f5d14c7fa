"""An account for each caller of the API: reservations for their work, and charges for its calls.

Work reserves its estimate in the transaction that admits it, before any call. Each paid call then adds a charge, in
the transaction that records it, to the account of the last caller who asked for its work. A reservation counts until
its work ends. A charge counts for the day of its call, and nothing that happens to the work changes it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Index,
    String,
    UniqueConstraint,
    and_,
    case,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from pipeline.engine import live_settings as live
from pipeline.engine.errors import UserError
from pipeline.engine.tables import Base, RowId, UtcDateTime, portions, table_of
from pipeline.engine.transaction import ReadTx, Tx
from pipeline.settings import Settings

CALLER: ContextVar[str] = ContextVar("api_caller", default="")
"""The id of the caller whose request this thread serves. Empty on the command line and in workers: no account pays."""
_MARGIN_S = 60
"""A call may take this much longer than its time-out until its record is written."""
_ROUNDING = 1e-9
_RETRY_S = 30.0
"""When a refused caller may retry, while work under way has money reserved."""


class Reservation(Base):
    """Money reserved for one piece of work. The newest reservation names the account that pays the work's calls."""

    __tablename__ = "spend_reservations"
    __table_args__ = (
        Index("ix_spend_reservations_item", "flow", "item_id", "began_at"),
        Index("ix_spend_reservations_owner", "owner", "ends_at"),
        Index("ix_spend_reservations_ends_at", "ends_at"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    owner: Mapped[str] = mapped_column(String(64))
    """The caller's id; empty if a command on this machine took over the work of a caller."""
    flow: Mapped[str] = mapped_column(String(40))
    item_id: Mapped[str] = mapped_column(String(64))
    unit: Mapped[str] = mapped_column(String(64), default="")
    """The one requested unit of the item, such as a page; empty: the whole item."""
    units: Mapped[int]
    """The number of units that the amount estimates. Several callers of one item share its cost by their units."""
    amount: Mapped[float]
    charged: Mapped[float] = mapped_column(default=0.0)
    """The cost of the calls so far, which lowers the reserved amount."""
    began_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ends_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """The end of the reservation; None: the work has not ended. A time ahead: calls may still be under way."""


class SpendCharge(Base):
    """The cost of one call for one caller."""

    __tablename__ = "spend_charges"
    __table_args__ = (
        UniqueConstraint("call_id", "owner"),
        Index("ix_spend_charges_owner", "owner", "at"),
        Index("ix_spend_charges_at", "at"),
    )

    id: Mapped[int] = mapped_column(RowId, primary_key=True)
    owner: Mapped[str] = mapped_column(String(64))
    call_id: Mapped[str] = mapped_column(String(32))
    reservation_id: Mapped[int] = mapped_column(BigInteger)
    flow: Mapped[str] = mapped_column(String(40))
    scope_id: Mapped[str] = mapped_column(String(64))
    unit: Mapped[str] = mapped_column(String(64))
    operation: Mapped[str] = mapped_column(String(60))
    provider: Mapped[str] = mapped_column(String(60))
    model: Mapped[str] = mapped_column(String(120))
    cost: Mapped[float]
    """By the provider's price list, in its currency."""
    at: Mapped[datetime] = mapped_column(UtcDateTime)


"""Start of the call."""


RESERVATIONS, CHARGES = table_of(Reservation), table_of(SpendCharge)


class Part(NamedTuple):
    """A number of units of work, and the estimate for each."""

    units: int
    each: float


@dataclass(frozen=True)
class Balance:
    """The state of an account in the day that began at `since`."""

    spent: float
    reserved: float
    since: datetime


class OverCap(UserError):
    """The caller's cap does not cover this now. `retry_after_s`: seconds until it may."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, code="quota")
        self.retry_after_s = retry_after_s


def day_of(now: datetime) -> datetime:
    """Return the midnight, in this server's time zone, at which the day of `now` began: callers' caps count from it."""
    return now.astimezone().replace(hour=0, minute=0, second=0, microsecond=0)


def cap(tx: ReadTx) -> float:
    """The amount that each caller may spend in a day: the live setting `api.spend_per_day`; 0: no cap."""
    own = tx.settings.api
    known = live.of_fields("api", own, {"spend_per_day": own.LIVE["spend_per_day"]})
    return live.with_changes(own, live.values(tx, known)).spend_per_day


def hold_s(settings: Settings) -> float:
    """How long a call may still cost money after its work was cut off, in seconds."""
    return max((profile.timeout_s for profile in settings.providers.values()), default=0.0) + _MARGIN_S


def balance(tx: ReadTx, owner: str) -> Balance:
    """The sums that `owner`, a key's id, has spent since midnight and has reserved for its work under way."""
    since = day_of(tx.now)
    spent = select(func.coalesce(func.sum(CHARGES.c.cost), 0.0)).where(CHARGES.c.owner == owner, CHARGES.c.at >= since)
    reserved = select(func.coalesce(func.sum(_REST), 0.0)).where(RESERVATIONS.c.owner == owner, counts(tx.now))
    return Balance(float(tx.execute(spent).scalar_one()), float(tx.execute(reserved).scalar_one()), since)


_LEFT = RESERVATIONS.c.amount - RESERVATIONS.c.charged
_REST = case((_LEFT > 0, _LEFT), else_=0.0)


def counts(now: datetime) -> ColumnElement[bool]:
    """Condition: the reservation has not ended at `now`, so its unused amount counts against the caller's cap."""
    return or_(RESERVATIONS.c.ends_at.is_(None), RESERVATIONS.c.ends_at > now)


def amount_of(parts: Iterable[Part], most: float) -> float:
    """Return the amount to reserve for these parts. A unit counts as at most the whole cap `most` (0: no cap): a cap
    below its price would otherwise admit no work."""
    return sum(part.units * (min(part.each, most) if most else part.each) for part in parts)


def check(tx: ReadTx, owner: str, most: float, amount: float = 0.0) -> None:
    """Raise `OverCap` if this caller, who may spend `most` in a day (0: no cap), has spent that today; with an
    `amount`, also if it exceeds the cap together with today's spending and the open reservations."""
    if not most:
        return
    today = balance(tx, owner)
    ends = today.since + timedelta(days=1)
    until = f"{ends:%Y-%m-%d %H:%M} ({ends:%Z}, the server's local time)"
    if today.spent >= most:
        raise OverCap(
            f"this key has spent its {most:g} for today ({today.spent:.4g}): no paid work starts for it "
            f"before {until}; work under way goes on",
            (ends - tx.now).total_seconds() + 1,
        )
    if amount and today.spent + today.reserved + amount > most + _ROUNDING:
        raise OverCap(
            f"this may cost {amount:.4g}, and this key may spend {most:g} a day: {today.spent:.4g} is spent and "
            f"{today.reserved:.4g} is reserved for work under way. Ask for less, try again when that has ended or "
            f"after {until}, or ask for a higher api.spend_per_day",
            _RETRY_S if today.reserved else (ends - tx.now).total_seconds() + 1,
        )


def admit(
    tx: Tx, flow: str, wanted: Mapping[str, Sequence[Part]], *, unit: str = "", lasts_s: float | None = None
) -> None:
    """Reserve money for these items of a flow, in the transaction that takes them in: the current caller pays for them.
    Without a caller, for a command on this machine, reserves nothing: from now on no account pays for calls for them.

    Raises `OverCap`, with nothing reserved, if the day's cap does not cover all of them. Ends earlier reservations of
    the same work; see `cut_off` for calls under way. `wanted`: by item, the estimates of its parts. `lasts_s`: after
    how many seconds the reservation ends by itself; None: only `end` and the like end it.
    """
    end(tx, flow, wanted, unit=unit)
    owner = CALLER.get()
    if not owner:
        _take_over(tx, flow, wanted, unit)
        return
    most = cap(tx)
    amounts = {item: amount_of(parts, most) for item, parts in wanted.items()}
    _one_at_a_time(tx, owner, most)
    check(tx, owner, most, sum(amounts.values()))
    ends_at = None if lasts_s is None else tx.now + timedelta(seconds=lasts_s)
    rows = [
        _row(owner, flow, item, unit, tx.now, sum(part.units for part in parts), amounts[item]) | {"ends_at": ends_at}
        for item, parts in wanted.items()
    ]
    _insert(tx, rows)


def _take_over(tx: Tx, flow: str, items: Iterable[str], unit: str) -> None:
    """Take over a caller's work for a command on this machine: from now on no account pays for its calls."""
    for portion in portions(items):
        known = select(RESERVATIONS.c.item_id).where(RESERVATIONS.c.flow == flow, RESERVATIONS.c.item_id.in_(portion))
        _insert(tx, [_row("", flow, item, unit, tx.now, 0, 0.0) for item in sorted(set(tx.execute(known).scalars()))])


def _row(owner: str, flow: str, item: str, unit: str, now: datetime, units: int, amount: float) -> dict[str, Any]:
    return {
        "owner": owner[:64],
        "flow": flow,
        "item_id": item,
        "unit": unit,
        "units": units,
        "amount": amount,
        "charged": 0.0,
        "began_at": now,
        "ends_at": None if owner else now,
    }


def _insert(session: Session, rows: list[dict[str, Any]]) -> None:
    if rows:
        session.execute(insert(RESERVATIONS), rows)


def end(tx: Tx, flow: str, items: Iterable[str], *, unit: str = "") -> None:
    """End the open reservations of these items now, or only those of one `unit` of them: no further call follows.
    Leaves reservations that `cut_off` lets end later."""
    _end(tx, flow, items, unit, ends_at=tx.now)


def close(tx: Tx, flow: str, item: str) -> None:
    """End the reservations of an item now, also those that would hold until a later time."""
    of_item = (RESERVATIONS.c.flow == flow, RESERVATIONS.c.item_id == item)
    tx.execute(update(RESERVATIONS).where(*of_item).values(ends_at=tx.now))


def cut_off(tx: Tx, flow: str, items: Iterable[str], under_way: int | None = None) -> None:
    """Let the reservations of items end in `hold_s` seconds, because calls for `under_way` units of each (None: all)
    are still under way, although their work was cut off.

    Until then only the estimate for these units stays reserved. With 0, the reservations end now.
    """
    if under_way == 0:
        end(tx, flow, items)
        return
    values: dict[str, Any] = {"ends_at": tx.now + timedelta(seconds=hold_s(tx.settings))}
    if under_way is not None:
        part = RESERVATIONS.c.charged + RESERVATIONS.c.amount * under_way / RESERVATIONS.c.units
        values["amount"] = case((RESERVATIONS.c.units > under_way, part), else_=RESERVATIONS.c.amount)
    _end(tx, flow, items, "", **values)


def _end(session: Session, flow: str, items: Iterable[str], unit: str, **values: Any) -> None:
    for portion in portions(items):
        which = [RESERVATIONS.c.flow == flow, RESERVATIONS.c.item_id.in_(portion), RESERVATIONS.c.ends_at.is_(None)]
        which += [RESERVATIONS.c.unit == unit] if unit else []
        session.execute(update(RESERVATIONS).where(*which).values(**values))


def ended(
    session: Session, flow: str, unfinished: Callable[[Session, Collection[str]], set[str]], owner: str = ""
) -> list[int]:
    """Return the row ids of open reservations whose work has ended. `unfinished` returns those of the given items whose
    work goes on. With `owner`, a key's id: only of this caller.

    Ids of rows, not of items: a caller may request the same work anew before they are released.
    """
    which = and_(RESERVATIONS.c.flow == flow, RESERVATIONS.c.ends_at.is_(None))
    if owner:
        which = and_(which, RESERVATIONS.c.owner == owner)
    reservations: list[int] = []
    for portion in portions(session.execute(select(RESERVATIONS.c.id, RESERVATIONS.c.item_id).where(which)).all()):
        unfinished_items = unfinished(session, {row.item_id for row in portion})
        reservations += [row.id for row in portion if row.item_id not in unfinished_items]
    return reservations


def release(tx: Tx, reservations: Iterable[int]) -> None:
    """End the reservations with these row ids now."""
    for portion in portions(reservations):
        tx.execute(update(RESERVATIONS).where(RESERVATIONS.c.id.in_(portion)).values(ends_at=tx.now))


def revise(tx: Tx, flow: str, item: str, parts: Sequence[Part]) -> None:
    """Replace the estimate for an item, before the first call for it, in each of its open reservations: one for each
    caller who shares it.

    Raises `OverCap` if that is more than was reserved, and the difference exceeds what a caller's cap leaves.
    """
    current = (RESERVATIONS.c.flow == flow, RESERVATIONS.c.item_id == item, RESERVATIONS.c.ends_at.is_(None))
    for row in tx.execute(select(RESERVATIONS).where(*current)).all():
        most = cap(tx)
        amount = amount_of(parts, most)
        if amount > row.amount:
            _one_at_a_time(tx, row.owner, most)
            check(tx, row.owner, most, amount - row.amount)
        values = {"amount": amount, "units": sum(part.units for part in parts)}
        tx.execute(update(RESERVATIONS).where(RESERVATIONS.c.id == row.id).values(**values))


def _one_at_a_time(session: Session, owner: str, most: float) -> None:
    """Make admissions of a caller with a cap wait for one another. SQLite has one writer anyway."""
    if most and session.get_bind().dialect.name != "sqlite":
        session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"spend:{owner}", 0))))


def carry(tx: Tx, flow: str, items: Collection[str], into: str) -> None:
    """Move the reservations of single items to the batch `into`: callers share its cost by their numbers of items."""
    newest = _newest(tx, flow, [(item, "") for item in items], None)
    units, amounts = Counter({"": len(items) - len(newest)}), Counter[str]()
    for row in (row for rows in newest.values() for row in rows):
        units[row.owner] += row.units or 1
        amounts[row.owner] += row.amount
    end(tx, flow, items)
    if newest:
        rows = [_row(owner, flow, into, "", tx.now, units[owner], amounts[owner]) for owner in units if units[owner]]
        tx.execute(insert(RESERVATIONS), rows)


def rest(session: Session, flow: str, item: str) -> list[Part]:
    """The newest estimate for an item less the cost of its calls so far: a part for each caller who shares it. Empty if
    no caller pays."""
    rows = _newest(session, flow, [(item, "")], None).get((item, ""), [])
    remaining = [(max(1, row.units), max(0.0, row.amount - row.charged)) for row in rows if row.owner]
    return [Part(units, amount / units) for units, amount in remaining]


def charge(session: Session, traces: Iterable[Mapping[str, Any]]) -> None:
    """Charge calls, which this transaction records, to the last callers who asked for their work: add charges, and
    lower the reservations.

    A trace's `of`: the (item, unit) pairs that share the call in equal parts, where they differ from its own scope and
    unit.
    """
    for trace in traces:
        if not trace.get("cost"):
            continue
        of = [(str(item), str(unit)) for item, unit in trace.get("of") or [(trace["scope_id"], trace["unit"])]]
        shares: dict[str, tuple[int, float]] = {}
        reservations = _newest(session, trace["flow"], of, trace["created_at"])
        for pair in of:
            rows = reservations.get(pair, [])
            parts = sum(row.units or 1 for row in rows)
            for row in rows:
                cost = trace["cost"] / len(of) * (row.units or 1) / parts
                session.execute(
                    update(RESERVATIONS)
                    .where(RESERVATIONS.c.id == row.id)
                    .values(charged=RESERVATIONS.c.charged + cost)
                )
                if row.owner:
                    shares[row.owner] = (row.id, shares.get(row.owner, (0, 0.0))[1] + cost)
        for owner, (reservation_id, cost) in shares.items():
            facts = {name: trace[name] for name in ("call_id", "flow", "scope_id", "unit", "operation", "provider")}
            session.execute(
                insert(CHARGES).values(
                    owner=owner,
                    reservation_id=reservation_id,
                    cost=cost,
                    at=trace["created_at"],
                    model=trace["model"],
                    **facts,
                )
            )


def _newest(
    session: Session, flow: str, pairs: Sequence[tuple[str, str]], at: datetime | None
) -> dict[tuple[str, str], list[Any]]:
    """The reservations that pay for these units, by item and unit: the newest that began before the call.

    If the call seems older than all of them, because its host's clock is behind, the oldest pay.
    """
    items: dict[str, list[Any]] = defaultdict(list)
    units = {"", *(unit for _, unit in pairs)}
    for portion in portions(sorted({item for item, _ in pairs})):
        of_items = and_(
            RESERVATIONS.c.flow == flow, RESERVATIONS.c.item_id.in_(portion), RESERVATIONS.c.unit.in_(units)
        )
        for row in session.execute(select(RESERVATIONS).where(of_items).order_by(RESERVATIONS.c.began_at)):
            items[row.item_id].append(row)
    newest = {}
    for item, unit in pairs:
        rows = [row for row in items[item] if row.unit in {"", unit}]
        if rows:
            before = [row.began_at for row in rows if at is None or row.began_at <= at]
            moment = max(before) if before else min(row.began_at for row in rows)
            newest[item, unit] = [row for row in rows if row.began_at == moment]
    return newest
