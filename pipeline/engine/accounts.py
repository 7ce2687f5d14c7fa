"""An account for each caller of the API: reservations for their work, and charges for its calls.

Work reserves its estimate in the transaction that takes it in, before any call. Each paid call then adds a charge, in
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
"""When to ask again, while money is reserved for work under way."""


class Reservation(Base):
    """Money that is kept for one piece of work. The newest of a piece says whose account its calls are charged to."""

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
    """The one unit of the item, such as a page, that was asked for; empty: all of it."""
    units: Mapped[int]
    """Of how many units the amount is an estimate. Several who asked for one item pay by their units."""
    amount: Mapped[float]
    charged: Mapped[float] = mapped_column(default=0.0)
    """What calls have cost so far: so much less is reserved."""
    began_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ends_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    """From then on nothing is reserved; None: the work has not ended. Later than now: calls may still be under way."""


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
    """When the call began."""


RESERVATIONS, CHARGES = table_of(Reservation), table_of(SpendCharge)


class Part(NamedTuple):
    """A number of units of work, and the estimate for each."""

    units: int
    each: float


@dataclass(frozen=True)
class Balance:
    """How an account stands in the day that began at `since`."""

    spent: float
    reserved: float
    since: datetime


class OverCap(UserError):
    """The caller's cap does not cover this now. `retry_after_s`: when it may."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, code="quota")
        self.retry_after_s = retry_after_s


def day_of(now: datetime) -> datetime:
    """When the day began, by this server's clock."""
    return now.astimezone().replace(hour=0, minute=0, second=0, microsecond=0)


def cap(tx: ReadTx) -> float:
    """What each caller may spend in a day now; 0: no cap."""
    own = tx.settings.api
    known = live.of_fields("api", own, {"spend_per_day": own.LIVE["spend_per_day"]})
    return live.with_changes(own, live.values(tx, known)).spend_per_day


def hold_s(settings: Settings) -> float:
    """How long after its work was cut off a call may still cost something."""
    return max((profile.timeout_s for profile in settings.providers.values()), default=0.0) + _MARGIN_S


def balance(tx: ReadTx, owner: str) -> Balance:
    """How this caller's account stands."""
    since = day_of(tx.now)
    spent = select(func.coalesce(func.sum(CHARGES.c.cost), 0.0)).where(CHARGES.c.owner == owner, CHARGES.c.at >= since)
    reserved = select(func.coalesce(func.sum(_REST), 0.0)).where(RESERVATIONS.c.owner == owner, counts(tx.now))
    return Balance(float(tx.execute(spent).scalar_one()), float(tx.execute(reserved).scalar_one()), since)


_LEFT = RESERVATIONS.c.amount - RESERVATIONS.c.charged
_REST = case((_LEFT > 0, _LEFT), else_=0.0)


def counts(now: datetime) -> ColumnElement[bool]:
    """Whether a reservation still keeps money."""
    return or_(RESERVATIONS.c.ends_at.is_(None), RESERVATIONS.c.ends_at > now)


def amount_of(parts: Iterable[Part], most: float) -> float:
    """What to reserve for this. One unit is never taken to cost more than the whole cap: else a cap below its price
    would let nothing through."""
    return sum(part.units * (min(part.each, most) if most else part.each) for part in parts)


def check(tx: ReadTx, owner: str, most: float, amount: float = 0.0) -> None:
    """Raise `OverCap` if this caller, who may spend `most` in a day (0: no cap), cannot pay so much today."""
    if not most:
        return
    stands = balance(tx, owner)
    ends = stands.since + timedelta(days=1)
    until = f"{ends:%Y-%m-%d %H:%M} ({ends:%Z}, the server's local time)"
    if stands.spent >= most:
        raise OverCap(
            f"this key has spent its {most:g} for today ({stands.spent:.4g}): what may cost money is not begun for it "
            f"before {until}; what is under way goes on",
            (ends - tx.now).total_seconds() + 1,
        )
    if amount and stands.spent + stands.reserved + amount > most + _ROUNDING:
        raise OverCap(
            f"this may cost {amount:.4g}, and this key may spend {most:g} a day: {stands.spent:.4g} is spent and "
            f"{stands.reserved:.4g} is reserved for what is under way. Ask for less, try again when that has ended or "
            f"after {until}, or ask for a higher api.spend_per_day",
            _RETRY_S if stands.reserved else (ends - tx.now).total_seconds() + 1,
        )


def admit(
    tx: Tx, flow: str, wanted: Mapping[str, Sequence[Part]], *, unit: str = "", lasts_s: float | None = None
) -> None:
    """Reserve money for these items of a flow, in the transaction that takes them in: the current caller pays for them.

    Raises `OverCap`, with nothing reserved, if the day's cap does not cover all of them. What was reserved for the same
    work before ends; see `cut_off` for calls under way. `lasts_s`: it ends by itself then; None: with the work.
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
    """A command on this machine asks for the work of a caller: no account pays for its calls from now on."""
    for some in portions(items):
        known = select(RESERVATIONS.c.item_id).where(RESERVATIONS.c.flow == flow, RESERVATIONS.c.item_id.in_(some))
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
    """End what is reserved for these items, or for one unit of them: nothing more is called for it."""
    _end(tx, flow, items, unit, ends_at=tx.now)


def close(tx: Tx, flow: str, item: str) -> None:
    """End what was reserved for an item until a moment that has not come."""
    mine = (RESERVATIONS.c.flow == flow, RESERVATIONS.c.item_id == item)
    tx.execute(update(RESERVATIONS).where(*mine).values(ends_at=tx.now))


def cut_off(tx: Tx, flow: str, items: Iterable[str], under_way: int | None = None) -> None:
    """The same for work that was cut off while calls for so many units of each item were under way (None: for all).

    These are paid for within `hold_s`: so much stays reserved until then.
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
    for some in portions(items):
        mine = [RESERVATIONS.c.flow == flow, RESERVATIONS.c.item_id.in_(some), RESERVATIONS.c.ends_at.is_(None)]
        mine += [RESERVATIONS.c.unit == unit] if unit else []
        session.execute(update(RESERVATIONS).where(*mine).values(**values))


def ended(
    session: Session, flow: str, unfinished: Callable[[Session, Collection[str]], set[str]], owner: str = ""
) -> list[int]:
    """The reservations of work that has ended, by `unfinished`; of this caller only, if one is named.

    By the rows' own ids: the same work may be asked for again before they are released.
    """
    which = and_(RESERVATIONS.c.flow == flow, RESERVATIONS.c.ends_at.is_(None))
    if owner:
        which = and_(which, RESERVATIONS.c.owner == owner)
    found: list[int] = []
    for some in portions(session.execute(select(RESERVATIONS.c.id, RESERVATIONS.c.item_id).where(which)).all()):
        works = unfinished(session, {row.item_id for row in some})
        found += [row.id for row in some if row.item_id not in works]
    return found


def release(tx: Tx, reservations: Iterable[int]) -> None:
    """End these reservations."""
    for some in portions(reservations):
        tx.execute(update(RESERVATIONS).where(RESERVATIONS.c.id.in_(some)).values(ends_at=tx.now))


def revise(tx: Tx, flow: str, item: str, parts: Sequence[Part]) -> None:
    """Reserve for an item what its work turned out to need, before anything is called for it.

    Raises `OverCap` if that is more than was reserved, and the caller's cap does not cover it.
    """
    mine = (RESERVATIONS.c.flow == flow, RESERVATIONS.c.item_id == item, RESERVATIONS.c.ends_at.is_(None))
    for row in tx.execute(select(RESERVATIONS).where(*mine)).all():
        most = cap(tx)
        amount = amount_of(parts, most)
        if amount > row.amount:
            _one_at_a_time(tx, row.owner, most)
            check(tx, row.owner, most, amount - row.amount)
        values = {"amount": amount, "units": sum(part.units for part in parts)}
        tx.execute(update(RESERVATIONS).where(RESERVATIONS.c.id == row.id).values(**values))


def _one_at_a_time(session: Session, owner: str, most: float) -> None:
    """Admissions of a caller with a cap wait for one another. SQLite has one writer anyway."""
    if most and session.get_bind().dialect.name != "sqlite":
        session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"spend:{owner}", 0))))


def carry(tx: Tx, flow: str, items: Collection[str], into: str) -> None:
    """What was asked for one by one is done together from now on: those who asked pay for it by their numbers."""
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
    """The unused rest of the newest estimate for an item; empty if no caller asked for it."""
    rows = _newest(session, flow, [(item, "")], None).get((item, ""), [])
    left = [(max(1, row.units), max(0.0, row.amount - row.charged)) for row in rows if row.owner]
    return [Part(units, amount / units) for units, amount in left]


def charge(session: Session, traces: Iterable[Mapping[str, Any]]) -> None:
    """Put calls, which are recorded in this transaction, on the accounts of those who asked for their work last.

    A trace's `of`: the (item, unit) pairs that the call is for, in equal parts, where they are not its own scope and
    unit.
    """
    for trace in traces:
        if not trace.get("cost"):
            continue
        of = [(str(item), str(unit)) for item, unit in trace.get("of") or [(trace["scope_id"], trace["unit"])]]
        shares: dict[str, tuple[int, float]] = {}
        found = _newest(session, trace["flow"], of, trace["created_at"])
        for pair in of:
            rows = found.get(pair, [])
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
    """The reservations that say who pays for these units, by item and unit: the newest that began before the call.

    A call whose host's clock is behind may seem to come before all of them: then the oldest.
    """
    items: dict[str, list[Any]] = defaultdict(list)
    units = {"", *(unit for _, unit in pairs)}
    for some in portions(sorted({item for item, _ in pairs})):
        mine = and_(RESERVATIONS.c.flow == flow, RESERVATIONS.c.item_id.in_(some), RESERVATIONS.c.unit.in_(units))
        for row in session.execute(select(RESERVATIONS).where(mine).order_by(RESERVATIONS.c.began_at)):
            items[row.item_id].append(row)
    found = {}
    for item, unit in pairs:
        rows = [row for row in items[item] if row.unit in {"", unit}]
        if rows:
            before = [row.began_at for row in rows if at is None or row.began_at <= at]
            moment = max(before) if before else min(row.began_at for row in rows)
            found[item, unit] = [row for row in rows if row.began_at == moment]
    return found
