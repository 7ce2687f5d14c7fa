"""The convert stage: what a lane does with the pages of one document. Source 001, section 4.3."""

import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import astuple, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import structlog
from redis import RedisError
from sqlalchemy import and_, select
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session

from pipeline.engine.claims import Owner, new_claim
from pipeline.engine.errors import ErrorKind, PenstockError, UnitError, UserError
from pipeline.engine.guarded_call import GuardedCall
from pipeline.engine.lanes import Batch
from pipeline.engine.metrics import queue_depths
from pipeline.engine.retry import Policy
from pipeline.flows.documents import files
from pipeline.flows.documents.models import ATTEMPTS, DOCUMENTS, PAGES
from pipeline.flows.documents.routes import provider_of, served_by
from pipeline.flows.documents.states import AT_REST
from pipeline.flows.documents.work import page as units
from pipeline.flows.documents.work.page import Exchange, Outcome, PageUnit
from pipeline.providers import registry
from pipeline.providers.protocols import Answer, PageConverter, PageReader, PageRef
from pipeline.reading.filetype import FileType
from pipeline.reading.source import render_pages
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
LEASE_MARGIN_S = 60


def policy(context: Context) -> Policy:
    """When a page is tried again."""
    return Policy(tuple(context.settings.documents.backoff_s))


class PageWork:
    """One hop of a lane over the pages of one document. Opens the source once; close it by leaving its `with`."""

    def __init__(
        self,
        context: Context,
        document_id: str,
        queue: str,
        owner: Owner,
        timed_out: type[Exception] = TimeoutError,
        guarded: GuardedCall | None = None,
    ) -> None:
        self._context = context
        self._document_id = document_id
        self._queue = queue
        self._owner = owner
        self._timed_out = timed_out
        self._guarded = guarded
        self._open = ExitStack()
        self._converters: dict[tuple[str, str], PageConverter] = {}
        self._readers: dict[tuple[str, str], PageReader] = {}
        self._source: Path | None = None
        self._pictures: Path | None = None
        self._type: FileType = "pdf"
        self._first: Any = None
        self.last: Exchange | None = None
        """What the latest transaction did."""
        self.retry_in_s: float | None = None
        """The shortest wait that a page was given in this hop."""

    def __enter__(self) -> "PageWork":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        if self._guarded is not None:
            with suppress(RedisError):
                self._guarded.leave()
        if error is not None:
            # A defect, or a database that stayed away: the attempt counts, so that this cannot go on for ever.
            with suppress(SQLAlchemyError):
                self._give_back(f"unexpected {type(error).__name__} in its lane")

    def begin(self) -> None:
        """Give back what an earlier delivery of this very message held: its process died.

        Where pages are paid for, what another worker holds is left alone: it may live and be in its call. If it is
        dead, the sweeper notices, or its lease ends."""
        self._give_back("the worker was lost while it converted this page")

    def _give_back(self, reason: str) -> None:
        which = PAGES.c.request_id == self._owner.request_id
        if self._guarded is not None:
            which = and_(which, PAGES.c.worker_id == self._owner.worker_id)
        with self._context.db.read() as session:
            if session.execute(select(PAGES.c.id).where(which).limit(1)).first() is None:
                return

        def work(session: Session) -> None:
            document = units.lock(session, self._document_id)
            if document is not None:
                units.free_lost(session, document, which, reason, policy(self._context), datetime.now(UTC))

        self._context.db.run(work)

    @property
    def has_news(self) -> bool:
        """Whether this hop changed the document's state or its percentage."""
        if self.last is None:
            return False
        now, before = self.last.document, self._first
        return bool((now.status, now.progress) != (before.status, before.progress))

    def exchange(self, outcomes: Sequence[Outcome], want: int, unbegun: Sequence[PageUnit] = ()) -> Batch[PageUnit]:
        """Commit, give back and claim in one transaction."""
        providers = served_by(self._context, self._queue)

        def work(session: Session) -> Exchange | None:
            now = datetime.now(UTC)
            claim = new_claim(self._owner, now, self._lease_s)
            return units.exchange(
                session, self._document_id, providers, outcomes, want, claim,
                policy=policy(self._context), now=now, unbegun=unbegun,
            )  # fmt: skip

        done = self._context.db.run(work)
        if done is None:
            return Batch([], more=False)
        self._note(done, outcomes)
        return Batch([self._as_asked(unit) for unit in done.units], more=done.more)

    def _as_asked(self, unit: PageUnit) -> PageUnit:
        """The unit as this lane does it: by its own provider's model where it stands in for another one."""
        asked = provider_of(self._queue)
        return unit if unit.provider == asked else replace(unit, provider=asked, model="")

    @property
    def _lease_s(self) -> float:
        """Longer than the longest call: a lease that ran out under a call would have the page paid for twice."""
        timeouts_s = [profile.timeout_s for profile in self._context.settings.providers.values()]
        return max(
            [self._context.settings.documents.lease_s, *(timeout_s + LEASE_MARGIN_S for timeout_s in timeouts_s)]
        )

    def _note(self, done: Exchange, outcomes: Sequence[Outcome]) -> None:
        self._first = self._first or done.document
        self.last = done
        if done.document.status in AT_REST:
            # PARTIAL_FAILED, or cancelled meanwhile: pictures are made again for pages that are retried.
            files.remove_temp(self._context.settings, self._document_id)
        if done.retry_in_s is not None:
            self.retry_in_s = min(done.retry_in_s, self.retry_in_s or done.retry_in_s)
        for outcome in outcomes:
            _log_outcome(outcome)

    def perform(self, unit: PageUnit) -> Outcome:
        """Convert one page. Whatever goes wrong is the outcome's error."""
        begun = time.monotonic()
        extra: dict[str, Any] = {"model": unit.model}
        try:
            answer = self._convert(unit, extra)
            error = None
        except self._timed_out:
            limit = self._context.settings.documents.page_timeout_s
            answer, error = None, UnitError(f"the page took longer than {limit:.0f} s", code="timeout")
        except UnitError as failure:
            answer, error = None, failure
        except PenstockError as failure:
            answer, error = None, UnitError(str(failure), kind=ErrorKind.PERMANENT)
        except (OSError, MemoryError, OperationalError) as failure:
            answer, error = None, UnitError(f"{type(failure).__name__}: {failure}")
        except Exception as failure:
            log.exception("page.unexpected_error", document=unit.document_id, page=unit.page)
            answer, error = None, UnitError(f"unexpected {type(failure).__name__}: {failure}", kind=ErrorKind.PERMANENT)
        if not extra.get("cached"):
            # A truncated answer is an error, but it was paid for.
            extra["cost"] = self._cost(answer or getattr(error, "answer", None))
        return Outcome(unit, answer, error, latency_ms=int((time.monotonic() - begun) * 1000), **extra)

    def _convert(self, unit: PageUnit, extra: dict[str, Any]) -> Answer:
        """The page's Markdown; `extra` is filled with what the ledger wants to know, also when this raises."""
        converter = self._converter(unit)
        extra["model"] = converter.model
        page = self._ref(unit, converter)
        if converter.paid:
            extra["cache_key"], extra["prompt_hash"] = converter.cache_key(page)
            known = self._cached(extra["cache_key"]) if unit.use_cache else None
            if known is not None:
                extra["cached"] = True
                return known
            extra["paid"] = True
        reader = self._reader(unit, converter, page.source)
        if self._guarded is None:
            return reader.convert(page)
        return self._guarded.call(lambda: reader.convert(page), lambda answer: (answer.model, *astuple(answer.usage)))

    def _cost(self, answer: Answer | None) -> float:
        if answer is None or self._guarded is None:
            return 0.0
        return self._guarded.cost_of(answer.model, answer.usage.input_tokens, answer.usage.output_tokens)

    def _converter(self, unit: PageUnit) -> PageConverter:
        key = (unit.provider, unit.model)
        if key not in self._converters:
            self._converters[key] = registry.page_converter(self._context.settings, unit.provider, unit.model)
        return self._converters[key]

    def _reader(self, unit: PageUnit, converter: PageConverter, source: Path) -> PageReader:
        key = (unit.provider, unit.model)
        if key not in self._readers:
            self._readers[key] = self._open.enter_context(converter.open(source, self._survey()))
        return self._readers[key]

    def _ref(self, unit: PageUnit, converter: PageConverter) -> PageRef:
        source = self._find_source()
        image = Path(unit.image_path) if unit.image_path else None
        if converter.needs_images and (image is None or not image.exists()):
            image = self._render(unit, source)
        return PageRef(source, unit.page_source, image, self._pictures)

    def _find_source(self) -> Path:
        if self._source is None:
            settings = self._context.settings
            query = select(DOCUMENTS.c.type, DOCUMENTS.c.pictures).where(DOCUMENTS.c.id == self._document_id)
            with self._context.db.read() as session:
                found = session.execute(query).one_or_none()
            if found is None:
                raise UserError("the document was deleted", code="unknown_document")
            self._type = found.type
            self._pictures = files.pictures_folder(settings, self._document_id) if found.pictures else None
            self._source = files.source_path(settings, self._document_id, found.type)
        return self._source

    def _survey(self) -> str:
        """What the split stage found out; pages get on without it."""
        try:
            return files.survey_path(self._context.settings, self._document_id).read_text(encoding="utf-8")
        except OSError:
            return ""

    def _render(self, unit: PageUnit, source: Path) -> Path:
        """The page's picture, made now: it was retried with another provider, or the temp folder was cleaned."""
        settings = self._context.settings
        folder = files.temp_folder(settings, unit.document_id)
        folder.mkdir(parents=True, exist_ok=True)
        dpi = settings.providers[unit.provider].image_dpi
        pictures = render_pages(source, self._type, [unit.page_source], folder, dpi, settings.documents.max_pixels)
        return next(iter(pictures))[1]

    def _cached(self, key: str) -> Answer | None:
        query = (
            select(ATTEMPTS.c.text, ATTEMPTS.c.model)
            .where(ATTEMPTS.c.cache_key == key, ATTEMPTS.c.status == "completed")
            .order_by(ATTEMPTS.c.id.desc())
            .limit(1)
        )
        with self._context.db.read() as session:
            row = session.execute(query).one_or_none()
        return Answer(text=row.text, model=row.model) if row else None

    def others_wait(self) -> bool:
        """Whether messages wait in this lane's queue."""
        try:
            return queue_depths(self._context.redis, [self._queue])[self._queue] > 0
        except RedisError:
            return False


def _log_outcome(outcome: Outcome) -> None:
    unit = outcome.unit
    fields = {
        "document": unit.document_id,
        "page": unit.page,
        "attempt": unit.attempt,
        "took_ms": outcome.latency_ms,
        "worker": unit.claim.owner.worker_id,
    }
    if outcome.error:
        log.warning("page.failed", **fields, kind=str(outcome.error.kind), error=units.message_of(outcome.error))
    else:
        log.info("page.converted", **fields, cached=outcome.cached)
