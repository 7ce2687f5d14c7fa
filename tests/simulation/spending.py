"""Callers with a cap, who submit the scopes of some seeds. Admits, charges and releases work as the API does."""

import random
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from pipeline.engine import accounts
from pipeline.engine.accounts import CALLER, CHARGES, RESERVATIONS, Part
from pipeline.engine.live_settings import SystemSetting
from pipeline.engine.tables import table_of
from pipeline.engine.transaction import Tx
from tests.simulation import provider
from tests.simulation.flow import SCOPES, ScopeState
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet

TABLES = (CHARGES, RESERVATIONS, table_of(SystemSetting))
PRICE = 1.0
CAP = 4.0
AGAIN_S = 5.0


class Spending:
    """The accounts of one seed. A seed without a cap has none."""

    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet
        chance = random.Random(f"cap {fleet.world.seed}")
        self.is_capped = chance.random() < 0.3
        self.owner_of = {f"s{number}": chance.choice(("ann", "bob")) for number in range(fleet.expected)}

    @property
    def price(self) -> float:
        """Of a call."""
        return PRICE if self.is_capped else 0.0

    def admit(self, tx: Tx, scope_id: str, queue: str, units: int) -> None:
        """Reserve the scope's budget, as its request does. Raises `OverCap`; the cap ends with the faults."""
        if not self.is_capped or queue != provider.QUEUE:
            return
        tx.settings.api.spend_per_day = 0 if self._fleet.world.calm else CAP
        CALLER.set(self.owner_of[scope_id])
        try:
            accounts.release(tx, accounts.ended(tx, "sim", unfinished))
            accounts.admit(tx, "sim", {scope_id: [Part(min(units, int(CAP)), PRICE)]})
        finally:
            CALLER.set("")

    def must_hold(self) -> None:
        """Check that callers stay within the cap, except for calls that cost more than their reservation."""
        if not self.is_capped or self._fleet.world.calm:
            return
        spent, beyond = Counter[str](), Counter[str]()
        for owner, cost, scope_id in self._fleet.scan("SELECT owner, cost, scope_id FROM spend_charges"):
            spent[owner] += cost
            if owner != self.owner_of[scope_id]:
                raise Violation(f"{owner} paid for {scope_id}, which {self.owner_of[scope_id]} handed in")
        for owner, more in self._fleet.scan("SELECT owner, charged - amount FROM spend_reservations"):
            beyond[owner] += max(0, more)
        for owner, cost in spent.items():
            if cost > CAP + beyond[owner] + 1e-6:
                raise Violation(f"{owner} spent {cost}, the cap is {CAP} and its calls cost {beyond[owner]} too much")

    def nothing_unpaid(self) -> None:
        """Check that each call on record was charged once."""
        if self.is_capped:
            ((calls,),) = self._fleet.scan("SELECT COUNT(*) FROM ai_calls")
            ((charges,),) = self._fleet.scan("SELECT COUNT(*) FROM spend_charges")
            if calls != charges:
                raise Violation(f"{calls} calls are on record, {charges} were charged")


def unfinished(session: Session, scope_ids: Collection[str]) -> set[str]:
    """Return the scopes that may still make calls."""
    works = SCOPES.c.status.not_in([ScopeState.DONE, ScopeState.FAILED])
    unfinished_ids: Any = session.execute(select(SCOPES.c.id).where(SCOPES.c.id.in_(scope_ids), works)).scalars()
    return set(unfinished_ids)
