"""Converts one page to Markdown: from the cache, by the local converter or by a provider.

Rules: docs/sources/documents.md#conversion.
"""

import os
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import structlog
from redis import RedisError
from sqlalchemy import and_, func, select
from sqlalchemy.exc import OperationalError

from pipeline.engine import kept_answers
from pipeline.engine.errors import ErrorKind, PenstockError, UnitError
from pipeline.engine.guarded_call import GuardedCall, earlier_answers
from pipeline.engine.kept_answers import Subject
from pipeline.flows.documents import files
from pipeline.flows.documents.models import ATTEMPTS, LAYOUTS, PAGES
from pipeline.flows.documents.work import page
from pipeline.flows.documents.work.page import Attempt, PageUnit
from pipeline.providers import registry
from pipeline.providers.protocols import Answer, PageConverter, PageReader, PageRef, charged
from pipeline.providers.traced_call import kept_form, result_of
from pipeline.providers.vision_pages import TruncatedAnswer
from pipeline.reading.pdf.pages import Pages
from pipeline.reading.sandbox.limits import MAX_PAGE_CHARS, page_limits
from pipeline.settings import Settings
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
_FACTS = ("call_id", "model", "cost", "queue", "latency_ms")
"""The fields that a kept answer stores about its call."""

SMALLER = 0.5
"""The factor of the resolution for a page that the provider rejects as too large."""

_RENDERING = threading.BoundedSemaphore(os.cpu_count() or 1)


def pages_of(settings: Settings, source: Path) -> Pages:
    """Return the pages of a stored file, to render within the settings' limits of time and memory."""
    return Pages(source, page_limits(settings.documents.page_timeout_s, settings.documents.reader_memory_mb))


def bounded(answer: Answer, page: int) -> Answer:
    """Return the answer. Raises `TruncatedAnswer` with its beginning if it exceeds `MAX_PAGE_CHARS`. `page`: its number
    in the file, for the message."""
    length = len(answer.text)
    if length <= MAX_PAGE_CHARS:
        return answer
    shortened = replace(answer, text=answer.text[:MAX_PAGE_CHARS], layout=None)
    message = f"the text of page {page} has {length:,} characters, more than the {MAX_PAGE_CHARS:,} that are accepted"
    raise TruncatedAnswer(message, shortened)


def _subject(unit: PageUnit) -> Subject:
    return Subject("documents", unit.document_id, str(unit.page), unit.claim_id)


class PageConversion:
    """Converts pages of one document, whose source it opens once. Call `close` at the end.

    `timed_out`: the error of a page that takes too long. `guarded`: makes the calls of a provider with a gate.
    """

    def __init__(
        self,
        context: Context,
        document_id: str,
        timed_out: type[Exception] = TimeoutError,
        guarded: GuardedCall | None = None,
    ) -> None:
        self._context = context
        self._document_id = document_id
        self._timed_out = timed_out
        self._guarded = guarded
        self._open = ExitStack()
        self.document: Any = None
        """The document's row, set after the first claim of a page."""
        self._converters: dict[tuple[str, str], PageConverter] = {}
        self._readers: dict[tuple[str, str], PageReader] = {}

    def close(self) -> None:
        """Close the source, and leave the provider's gate."""
        self._open.close()
        if self._guarded is not None:
            with suppress(RedisError):
                self._guarded.leave()

    def convert(self, unit: PageUnit) -> Attempt:
        """Convert one page. Never raises: the attempt holds the error."""
        started_at = time.monotonic()
        facts: dict[str, Any] = {"model": unit.model}
        answer, error = None, None
        try:
            answer = bounded(self._answer(unit, facts), unit.page_source)
        except self._timed_out:
            limit = self._context.settings.documents.page_timeout_s
            error = UnitError(f"the page took longer than {limit:.0f} s", code="timeout")
        except UnitError as failure:
            error = failure
        except PenstockError as failure:
            error = UnitError(str(failure), kind=ErrorKind.PERMANENT)
        except (OSError, MemoryError, OperationalError) as failure:
            error = UnitError(f"{type(failure).__name__}: {failure}")
        except Exception as failure:
            log.exception("page.unexpected_error", document=unit.document_id, page=unit.page)
            error = UnitError(f"unexpected {type(failure).__name__}: {failure}", kind=ErrorKind.PERMANENT)
        # A truncated answer is an error, but it costs money.
        paid: Answer | None = answer or getattr(error, "answer", None)
        if paid is not None and self._guarded is not None and not (facts.get("cached") or facts.get("kept")):
            facts["cost"] = self._guarded.cost_of(*charged(paid))
        facts = {"latency_ms": int((time.monotonic() - started_at) * 1000)} | facts
        attempt = Attempt(unit, answer, error, **facts)
        return self._keep(attempt, paid) if attempt.call_id and paid and not attempt.kept else attempt

    def _answer(self, unit: PageUnit, facts: dict[str, Any]) -> Answer:
        """Return the page's Markdown: from the cache, from a paid answer that `_keep` wrote but no transaction
        recorded, or by a call.

        Fills `facts` for the ledger, even on errors.
        """
        key = (unit.provider, unit.model)
        if key not in self._converters:
            self._converters[key] = registry.page_converter(self._context.settings, *key)
        converter = self._converters[key]
        facts["model"] = converter.model
        ref = self._page_ref(unit, converter)
        if converter.paid:
            facts["cache_key"], facts["prompt_hash"] = converter.cache_key(ref)
            known = self._cached(facts["cache_key"], unit.page_source) if unit.use_cache else None
            if known is not None:
                facts["cached"] = True
                return known
            facts["call_id"] = uuid4().hex
            known = self._kept(unit, facts)
            if known is not None:
                return known
        if key not in self._readers:
            self._readers[key] = self._open.enter_context(converter.open(ref.source, self._survey()))
        reader = self._readers[key]
        is_retry = converter.paid and not unit.use_cache
        token = earlier_answers.set(self._answers_on_record(facts["cache_key"]) if is_retry else 0)
        try:
            if self._guarded is None:
                return reader.convert(ref)
            facts["queue"] = self._guarded.gate.queue
            return self._guarded_answer(self._guarded, unit, reader, ref)
        finally:
            earlier_answers.reset(token)

    def _guarded_answer(self, guarded: GuardedCall, unit: PageUnit, reader: PageReader, ref: PageRef) -> Answer:
        """Call the provider for the page; if it rejects the picture as too large, call again with a smaller one."""
        try:
            return guarded.call(lambda: reader.convert(ref), charged)
        except UnitError as error:
            if error.code != "too_large" or ref.image is None:
                raise
            log.info("page.asked_smaller", document=unit.document_id, page=unit.page, error=str(error))
        dpi = self._context.settings.providers[unit.provider].image_dpi * SMALLER
        smaller = replace(ref, image=self._rendered(unit, dpi, ref.image.parent / "smaller"))
        return guarded.call(lambda: reader.convert(smaller), charged)

    def _keep(self, attempt: Attempt, paid: Answer) -> Attempt:
        """Write a paid answer to a file until the database has it; return the attempt with the file's path in
        `kept`."""
        facts = {name: getattr(attempt, name) for name in _FACTS}
        content = {
            "answer": kept_form(paid),
            "truncated": str(attempt.error) if attempt.error else None,
            "facts": facts,
        }
        trace = page.trace_of(attempt, self._context.db.now())
        folder, subject = self._context.settings.answer_dir, _subject(attempt.unit)
        return replace(attempt, kept=kept_answers.keep(folder, subject, str(attempt.cache_key), trace, content))

    def _kept(self, unit: PageUnit, facts: dict[str, Any]) -> Answer | None:
        """Return the answer that `_keep` wrote for this page before its worker was lost; None without one. Raises
        `TruncatedAnswer` if it was truncated."""
        folder = self._context.settings.answer_dir
        kept_answer = kept_answers.recall(folder, _subject(unit), facts["cache_key"])
        if kept_answer is None or kept_answer.content is None:
            return None
        facts.update(kept_answer.content["facts"], kept=kept_answer.path)
        answer = result_of(kept_answer.content["answer"])
        assert isinstance(answer, Answer)
        if kept_answer.content["truncated"]:
            raise TruncatedAnswer(kept_answer.content["truncated"], answer)
        return answer

    def _page_ref(self, unit: PageUnit, converter: PageConverter) -> PageRef:
        settings = self._context.settings
        source = files.source_path(settings, self._document_id, self.document.type)
        image = Path(unit.image_path) if unit.image_path else None
        if converter.needs_images and (image is None or not image.exists()):
            # Another provider retries the page, or the temp folder was cleaned up.
            folder = files.temp_folder(settings, self._document_id)
            image = self._rendered(unit, settings.providers[unit.provider].image_dpi, folder)
        pictures = files.pictures_folder(settings, self._document_id) if self.document.pictures else None
        return PageRef(source, unit.page_source, image, pictures)

    def _rendered(self, unit: PageUnit, dpi: float, folder: Path) -> Path:
        """Render a page as a picture into `folder`, and return the picture's path."""
        settings = self._context.settings
        folder.mkdir(parents=True, exist_ok=True)
        source = files.source_path(settings, self._document_id, self.document.type)
        # A provider's lanes are many threads, but each rendering takes a core and a process.
        with _RENDERING, pages_of(settings, source) as pages:
            return pages.render(unit.page_source, folder, dpi, settings.documents.max_pixels)

    def _survey(self) -> str:
        """Return the document's profile that splitting stored; empty without one, which conversion permits."""
        try:
            return files.survey_path(self._context.settings, self._document_id).read_text(encoding="utf-8")
        except OSError:
            return ""

    def _answers_on_record(self, key: str) -> int:
        """Count the completed attempts in the ledger with this cache key.

        The number is part of a node request's content: a requested retry differs from earlier requests, but a worker
        that takes over from a killed one repeats its request.
        """
        answered = select(func.count()).where(ATTEMPTS.c.cache_key == key, ATTEMPTS.c.status == "completed")
        with self._context.db.read() as session:
            return session.execute(answered).scalar_one()

    def _cached(self, key: str, page: int) -> Answer | None:
        # The layout belongs to the converted page, as long as that page has this text.
        converted = and_(
            PAGES.c.document_id == ATTEMPTS.c.document_id,
            PAGES.c.page == ATTEMPTS.c.page,
            PAGES.c.content == ATTEMPTS.c.text,
        )
        query = (
            select(ATTEMPTS.c.text, ATTEMPTS.c.model, LAYOUTS.c.data)
            .select_from(ATTEMPTS)
            .outerjoin(PAGES, converted)
            .outerjoin(LAYOUTS, LAYOUTS.c.page_id == PAGES.c.id)
            .where(ATTEMPTS.c.cache_key == key, ATTEMPTS.c.status == "completed")
            .order_by(ATTEMPTS.c.id.desc())
            .limit(1)
        )
        with self._context.db.read() as session:
            row = session.execute(query).one_or_none()
        if row is None:
            return None
        layout = row.data and row.data | {"blocks": [block | {"page": page} for block in row.data["blocks"]]}
        return Answer(text=row.text, model=row.model, layout=layout)
