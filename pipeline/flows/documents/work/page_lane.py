"""One hop of a lane over the pages of one document. Source 001, section 4.3."""

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import structlog
from redis import RedisError
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from pipeline.engine.claims import Owner, left_behind, new_claim
from pipeline.engine.guarded_call import GuardedCall
from pipeline.engine.lanes import Batch, run_lane
from pipeline.engine.metrics import queue_depths
from pipeline.engine.settled import Settled
from pipeline.engine.traces import message_of
from pipeline.flows.documents import files
from pipeline.flows.documents.models import PAGES
from pipeline.flows.documents.states import AT_REST
from pipeline.flows.documents.work import page
from pipeline.flows.documents.work.conversion import PageConversion
from pipeline.flows.documents.work.page import Attempt, PageBatch, PageUnit
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
LEASE_MARGIN_S = 60


class PageLane:
    """One hop of a lane.

    It takes pages of `providers`, and asks the first of them, which stands in for the others. `timed_out` and `guarded`
    are `PageConversion`'s.
    """

    def __init__(
        self, context: Context, document_id: str, queue: str, providers: Sequence[str], owner: Owner,
        timed_out: type[Exception] = TimeoutError, guarded: GuardedCall | None = None,
    ) -> None:  # fmt: skip
        self._context = context
        self._document_id = document_id
        self._queue = queue
        self._providers = providers
        self._owner = owner
        self._conversion = PageConversion(context, document_id, timed_out, guarded)
        self._before: Any = None
        self._after: Any = None
        self._settled: list[Settled] = []

    def run(self, quantum_s: float, batch: int = 1) -> Settled:
        """Release what an earlier delivery of this message held, and convert pages for about `quantum_s` seconds."""
        try:
            with closing(self._conversion) as conversion:
                self._release(page.WORKER_LOST)
                hop = run_lane(
                    self._settle_and_claim, conversion.convert, self._others_wait, quantum_s=quantum_s, batch=batch
                )
        except BaseException as error:
            # A defect, or a database that stayed away. The attempt counts, so that this cannot go on for ever.
            with suppress(SQLAlchemyError):
                self._release(f"unexpected {type(error).__name__} in its lane")
            raise
        before, after = self._before, self._after
        changed = before is not None and (before.status, before.progress) != (after.status, after.progress)
        waits = [settled.retry_in_s for settled in self._settled if settled.retry_in_s is not None]
        done = sum(settled.done for settled in self._settled)
        return Settled(done, hop.more, min(waits, default=None), changed=changed, size=hop.batch)

    def _release(self, reason: str) -> None:
        """Release what earlier deliveries of this message left behind; the attempts count."""
        with self._context.db.read() as session:
            if not left_behind(session, PAGES, self._owner):
                return

        def work(session: Session) -> None:
            document = page.lock(session, self._document_id)
            if document is not None:
                policy = page.policy(self._context.settings)
                which = PAGES.c.claim_id.in_(left_behind(session, PAGES, self._owner))
                page.release_lost(session, document, which, reason, policy, datetime.now(UTC))

        self._context.db.run(work)

    def _settle_and_claim(self, attempts: Sequence[Attempt], want: int, untried: Sequence[PageUnit]) -> Batch[PageUnit]:
        settings = self._context.settings
        # Longer than the longest call: a lease that ran out during a call would have the page paid for twice.
        calls_s = [profile.timeout_s + LEASE_MARGIN_S for profile in settings.providers.values()]
        lease_s = max([settings.documents.lease_s, *calls_s])

        def work(session: Session) -> PageBatch | None:
            now = datetime.now(UTC)
            return page.settle_and_claim(
                session, self._document_id, self._providers, attempts, want, new_claim(self._owner, now, lease_s),
                policy=page.policy(settings), now=now, untried=untried,
            )  # fmt: skip

        done = self._context.db.run(work)
        if done is None:
            return Batch([], more=False)
        self._before = self._before or done.document
        self._after = done.document
        if done.document.status in AT_REST:
            # PARTIAL_FAILED or CANCELLED. A retry renders the images again.
            files.remove_temp(settings, self._document_id)
        self._settled.append(done.settled)
        for attempt in attempts:
            _log_attempt(attempt)
        asked = self._providers[0]
        own = [unit if unit.provider == asked else replace(unit, provider=asked, model="") for unit in done.units]
        return Batch(own, done.more)

    def _others_wait(self) -> bool:
        try:
            return queue_depths(self._context.redis, [self._queue])[self._queue] > 0
        except RedisError:
            return False


def _log_attempt(attempt: Attempt) -> None:
    unit = attempt.unit
    fields = {
        "document": unit.document_id,
        "page": unit.page,
        "attempt": unit.attempt,
        "took_ms": attempt.latency_ms,
        "worker": unit.claim.owner.worker_id,
    }
    if attempt.error:
        log.warning("page.failed", **fields, kind=str(attempt.error.kind), error=message_of(attempt.error))
    else:
        log.info("page.converted", **fields, cached=attempt.cached)
