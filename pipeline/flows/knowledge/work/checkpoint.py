"""Whether an item is still wanted while it is read, and how far that is: asked and told not too often."""

import time

from sqlalchemy import select, update
from sqlalchemy.exc import SQLAlchemyError

from pipeline.engine.claims import Claim, held_by
from pipeline.flows.knowledge.models import ITEMS
from pipeline.flows.knowledge.rules.progress import read_progress
from pipeline.storage.context import Context

LOOK_S = 0.5
TELL_S = 0.3
"""Source 003, "进度与状态更新链路": 300 ms."""


class Checkpoint:
    """One item under one claim."""

    def __init__(self, context: Context, item_id: str, claim: Claim, weight: int) -> None:
        self._context, self._item_id, self._claim, self._weight = context, item_id, claim, weight
        self._wanted = True
        self._looked_at = self._told_at = time.monotonic()
        self._told = 0

    def wanted(self) -> bool:
        """Whether the claim still holds: it does not once the item is cancelled, deleted or taken over."""
        now = time.monotonic()
        if self._wanted and now - self._looked_at >= LOOK_S:
            self._looked_at = now
            mine = select(ITEMS.c.id).where(
                ITEMS.c.id == self._item_id, held_by(ITEMS, self._claim), ITEMS.c.deleting.is_(False)
            )
            try:
                with self._context.db.read() as session:
                    self._wanted = session.execute(mine).first() is not None
            except SQLAlchemyError:
                return True  # nobody knows; what is read is stored only if the claim holds then
        return self._wanted

    def read(self, fraction: float) -> None:
        """Note how much of the item is read, 0 to 1. It never goes back."""
        now, percent = time.monotonic(), read_progress(self._weight, fraction)
        if percent <= self._told or now - self._told_at < TELL_S:
            return
        self._told, self._told_at = percent, now
        mine = (ITEMS.c.id == self._item_id, held_by(ITEMS, self._claim), ITEMS.c.progress < percent)
        further = update(ITEMS).where(*mine).values(progress=percent)
        try:
            self._context.db.run(lambda session: session.execute(further), patience_s=1)
        except SQLAlchemyError:
            return  # the next one tells
