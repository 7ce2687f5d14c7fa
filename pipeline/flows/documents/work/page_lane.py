"""One hop of a lane over the pages of one document. Rules: docs/sources/documents.md#conversion."""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import structlog
from redis import RedisError
from sqlalchemy import and_
from sqlalchemy.exc import SQLAlchemyError

from pipeline.engine import work
from pipeline.engine.claims import Owner
from pipeline.engine.guarded_call import GuardedCall
from pipeline.engine.lanes import Batch, run_lane
from pipeline.engine.metrics import queue_depths
from pipeline.engine.settled import Settled
from pipeline.engine.traces import message_of
from pipeline.engine.transaction import Tx
from pipeline.flows.documents import files
from pipeline.flows.documents.models import PAGES
from pipeline.flows.documents.states import AT_REST, DocumentStatus
from pipeline.flows.documents.work import page
from pipeline.flows.documents.work.conversion import PageConversion
from pipeline.flows.documents.work.page import CONVERT, Attempt, DocumentState, PageBatch, PageUnit
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)


class PageLane:
    """One hop of a lane.

    It claims pages of `providers`, and calls the first, which stands in for the others. `timed_out` and `guarded`
    go to `PageConversion`.
    """

    def __init__(
        self,
        context: Context,
        document_id: str,
        queue: str,
        providers: Sequence[str],
        owner: Owner,
        timed_out: type[Exception] = TimeoutError,
        guarded: GuardedCall | None = None,
    ) -> None:
        self._context = context
        self._document_id = document_id
        self._queue = queue
        self._providers = providers
        self._owner = owner
        self._conversion = PageConversion(context, document_id, timed_out, guarded)
        self._before: Any = None
        self._after: DocumentState | None = None
        self._done = 0
        self.converted = 0
        self.failures: Counter[str] = Counter()
        """Failed attempts by kind of error; monitors must not see texts of pages or providers."""

    def run(self, quantum_s: float, batch: int = 1) -> Settled:
        """Give back the pages of this message's earlier delivery, then convert pages for about `quantum_s` seconds.
        `Settled.requeue`: more pages are due.

        Raises unexpected errors after giving back the claimed pages, whose attempts count. `batch`: pages to claim at
        once.
        """
        try:
            with closing(self._conversion) as conversion:
                hop = run_lane(
                    self._settle_and_claim, conversion.convert, self._others_wait, quantum_s=quantum_s, batch=batch
                )
        except BaseException as error:
            # A defect, or a database that did not answer. The attempts count, so that this cannot repeat for ever.
            with suppress(SQLAlchemyError):
                self._give_back(f"unexpected {type(error).__name__} in its lane")
            raise
        before, after = self._before, self._after
        changed = after is not None and (before.status, before.progress) != (after.status, after.progress)
        return Settled(self._done, hop.more, changed=changed, size=hop.batch)

    @property
    def is_last(self) -> bool:
        """Whether this message settled the document's last page, so that merging comes next."""
        return self._after is not None and self._before.status != self._after.status == DocumentStatus.READY_TO_MERGE

    def _give_back(self, reason: str) -> None:
        """Give back the pages that this process holds for this message; the attempts count."""
        which = and_(
            PAGES.c.request_id == self._owner.request_id,
            PAGES.c.worker_id == self._owner.worker_id,
            CONVERT.in_scope(self._document_id),
        )

        def act(tx: Tx) -> None:
            document = CONVERT.lock(tx, self._document_id)
            if document is not None:
                work.give_back(tx, CONVERT, document, which, reason=reason)

        self._context.db.run(act)

    def _settle_and_claim(self, attempts: Sequence[Attempt], want: int, untried: Sequence[PageUnit]) -> Batch[PageUnit]:
        is_first = self._after is None

        def act(tx: Tx) -> PageBatch | None:
            return page.settle_and_claim(
                tx, self._document_id, self._providers, attempts, want, self._owner, untried=untried, is_first=is_first
            )

        done = self._context.db.run(act)
        if done is None:
            return Batch([], more=False)
        if is_first:
            self._before = self._conversion.document = done.document.row
        self._after = done.document
        if done.document.status in AT_REST:
            # PARTIAL_FAILED or CANCELLED. A retry renders the images again.
            files.remove_temp(self._context.settings, self._document_id)
        self._done += done.settled.done
        for attempt in attempts:
            _log_attempt(attempt)
            if attempt.error:
                self.failures[(attempt.error.code or attempt.error.kind).replace("_", " ")] += 1
            else:
                self.converted += 1
        first = self._providers[0]
        units = [unit if unit.provider == first else replace(unit, provider=first, model="") for unit in done.units]
        return Batch(units, done.more)

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
        "attempt": unit.attempts,
        "took_ms": attempt.latency_ms,
        "worker": unit.worker_id,
    }
    if attempt.error:
        log.warning("page.failed", **fields, kind=str(attempt.error.kind), error=message_of(attempt.error))
    else:
        log.info("page.converted", **fields, cached=attempt.cached)
