"""Converts one page to Markdown: from the cache, by the local converter or by a provider.

Rules: docs/sources/documents.md#conversion.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import structlog
from redis import RedisError
from sqlalchemy import and_, func, select
from sqlalchemy.exc import OperationalError

from pipeline.engine import kept_answers
from pipeline.engine.errors import ErrorKind, PenstockError, UnitError
from pipeline.engine.guarded_call import GateClosed, GuardedCall, earlier_answers
from pipeline.engine.kept_answers import Subject
from pipeline.engine.traces import message_of
from pipeline.flows.documents import files
from pipeline.flows.documents.models import ATTEMPTS
from pipeline.flows.documents.work import page
from pipeline.flows.documents.work.page import Attempt, PageUnit
from pipeline.providers import registry
from pipeline.providers.drawing import Drawing
from pipeline.providers.protocols import (
    Answer,
    PageConverter,
    PageReader,
    PageRef,
    Pass,
    RejectedAnswer,
    ServiceConverter,
    ServiceReader,
    charged,
)
from pipeline.providers.traced_call import kept_form, result_of
from pipeline.reading.ocr.rendition import PictureFacts, Rendition
from pipeline.reading.pdf.pages import Pages
from pipeline.reading.sandbox.limits import MAX_PAGE_CHARS, Limits, page_limits
from pipeline.settings import LOCAL, Settings
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)

SMALLER = 0.5
"""The factor of the resolution for a page that the provider rejects as too large."""

_PATIENCE_S = 2.0
_WAITS = 5
"""How long, and how often, a page's further call waits for its turn; then another message goes on with it."""


def pages_of(settings: Settings, source: Path) -> Pages:
    """Return the pages of a stored file, to draw within the settings' limits of time and memory."""
    return Pages(source, _limits(settings))


def _limits(settings: Settings) -> Limits:
    return page_limits(settings.documents.page_timeout_s, settings.documents.reader_memory_mb)


def bounded(answer: Answer, page: int) -> Answer:
    """Return the answer. Raises `RejectedAnswer` with its beginning if it exceeds `MAX_PAGE_CHARS`. `page`: its number
    in the file, for the message."""
    length = len(answer.text)
    if length <= MAX_PAGE_CHARS:
        return answer
    shortened = replace(answer, text=answer.text[:MAX_PAGE_CHARS], layout=None, reply=None)
    message = f"the text of page {page} has {length:,} characters, more than the {MAX_PAGE_CHARS:,} that are accepted"
    raise RejectedAnswer(message, shortened)


def _subject(unit: PageUnit) -> Subject:
    return Subject("documents", unit.document_id, str(unit.page), unit.claim_id)


def _is_drawn_as(rendition: Rendition, image: Path) -> bool:
    """Whether a picture was drawn so, as far as is known."""
    facts = PictureFacts.read(image)
    return facts is None or facts.rendition == rendition


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
        tried = _Tried(self._context, self._guarded, unit)
        answer, error = None, None
        try:
            answer = bounded(self._answer(unit, tried), unit.page_source)
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
        return tried.attempt(answer, error)

    def _answer(self, unit: PageUnit, tried: "_Tried") -> Answer:
        """Return the page's Markdown: from the cache, from the first pass of a model that is good, or by local
        conversion if none is.

        Fills `tried` for the ledger, even on errors.
        """
        converter = self._converter(unit.provider, unit.model)
        tried.facts["model"] = converter.model
        ref = self._page_ref(unit, converter)
        reader = self._reader(converter, unit, ref)
        if not converter.paid:
            return reader.convert(ref)
        service = cast("ServiceConverter", converter)
        tried.facts["cache_key"], tried.facts["prompt_hash"] = converter.cache_key(ref)
        known = self._cached(tried.facts["cache_key"], unit.page_source) if unit.use_cache else None
        if known is not None:
            tried.facts["cached"] = True
            return known
        token = earlier_answers.set(0 if unit.use_cache else self._answers_on_record(tried.facts["cache_key"]))
        rejected: UnitError | None = None
        try:
            for done in self._passes(cast("ServiceReader", reader), unit, service, ref, tried):
                if done.error is None:
                    return done.answer
                if not service.falls_back:
                    raise done.error
                rejected = done.error
                tried.reject(rejected)
        finally:
            earlier_answers.reset(token)
        assert rejected is not None
        return self._local(unit, ref, tried, rejected)

    def _passes(
        self, reader: ServiceReader, unit: PageUnit, converter: ServiceConverter, ref: PageRef, tried: "_Tried"
    ) -> Iterator[Pass]:
        """Yield the passes over the page; begin with a smaller picture if the provider rejects it as too large."""
        try:
            yield from reader.passes(ref, tried.call)
        except UnitError as error:
            if error.code != "too_large" or ref.image is None or ref.drawing is None:
                raise
            log.info("page.asked_smaller", document=unit.document_id, page=unit.page, error=str(error))
        else:
            return
        smaller = ref.drawing.draw(converter.rendition.scaled(SMALLER), "smaller")
        yield from reader.passes(replace(ref, image=smaller), tried.call)

    def _local(self, unit: PageUnit, ref: PageRef, tried: "_Tried", rejected: UnitError) -> Answer:
        """Convert the page on this machine, because no answer of its provider is good. Raises an error with the reason
        for that if this is not possible either."""
        try:
            converter = self._converter(LOCAL, "")
            answer = self._reader(converter, replace(unit, provider=LOCAL, model=""), ref).convert(
                replace(ref, image=None)
            )
        except (UnitError, ImportError) as error:
            log.warning("page.no_fallback", document=unit.document_id, page=unit.page, error=str(error))
            raise UnitError(str(rejected), kind=ErrorKind.PERMANENT, code=rejected.code) from None
        tried.facts |= {"model": answer.model, "provider": LOCAL, "cache_key": None, "fallback": message_of(rejected)}
        return answer

    def _converter(self, provider: str, model: str) -> PageConverter:
        key = (provider, model)
        if key not in self._converters:
            self._converters[key] = registry.page_converter(self._context.settings, *key)
        return self._converters[key]

    def _reader(self, converter: PageConverter, unit: PageUnit, ref: PageRef) -> PageReader:
        key = (unit.provider, unit.model)
        if key not in self._readers:
            self._readers[key] = self._open.enter_context(converter.open(ref.source, self._survey()))
        return self._readers[key]

    def _page_ref(self, unit: PageUnit, converter: PageConverter) -> PageRef:
        settings = self._context.settings
        source = files.source_path(settings, self._document_id, self.document.type)
        image = Path(unit.image_path) if unit.image_path else None
        folder, limits = files.temp_folder(settings, self._document_id) / unit.provider, _limits(settings)
        drawing = Drawing(source, unit.page_source, folder / str(unit.page), limits, settings.documents.max_pixels)
        if converter.needs_images:
            rendition = cast("ServiceConverter", converter).rendition
            if not (image and image.exists() and _is_drawn_as(rendition, image)):
                # Another provider converts the page, or the temp folder was cleaned up.
                image = drawing.draw(rendition)
        pictures = files.pictures_folder(settings, self._document_id) if self.document.pictures else None
        return PageRef(source, unit.page_source, image, pictures, drawing if converter.needs_images else None)

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
        """Return the last good answer to this request, parsed again; None without one."""
        query = (
            select(ATTEMPTS.c.text, ATTEMPTS.c.model, ATTEMPTS.c.reply)
            .where(ATTEMPTS.c.cache_key == key, ATTEMPTS.c.status == "completed")
            .order_by(ATTEMPTS.c.id.desc())
            .limit(1)
        )
        with self._context.db.read() as session:
            row = session.execute(query).one_or_none()
        if row is None:
            return None
        if row.reply is None:
            return Answer(row.text, row.model)
        from pipeline.providers.vision_pages import answer_of  # noqa: PLC0415  # parsers, which local work never needs

        return answer_of(row.reply, page, row.model)


class _Tried:
    """What has been tried for a page: its passes and the calls of the current one."""

    def __init__(self, context: Context, guarded: GuardedCall | None, unit: PageUnit) -> None:
        self.facts: dict[str, Any] = {"model": unit.model}
        """Fields of the attempt."""
        self._context = context
        self._guarded = guarded
        self._unit = unit
        self._earlier: list[Attempt] = []
        self._began = time.monotonic()
        self._calls: list[dict[str, Any]] = []
        """The records of the calls of this pass, with the files that keep their answers."""
        self._answers: dict[str, dict[str, Any]] = {}
        """The answers of this pass, by the digest of the request."""
        self._rejected: Mapping[str, Any] | None = None
        self._has_called = False

    def attempt(self, answer: Answer | None, error: UnitError | None) -> Attempt:
        """Return the attempt of the last pass, and the others with it."""
        return replace(self._ended(answer, error), earlier=tuple(self._earlier))

    def reject(self, error: UnitError) -> None:
        """End a pass whose answer is not used. The ledger has it already if it made no call."""
        if self._calls:
            self._earlier.append(self._ended(None, error))
        self._calls, self._answers, self._began = [], {}, time.monotonic()

    def _ended(self, answer: Answer | None, error: UnitError | None) -> Attempt:
        facts = {"latency_ms": int((time.monotonic() - self._began) * 1000)} | self.facts
        reply = answer.reply if answer else None
        if error is not None and self._answers:
            partial: Answer | None = getattr(error, "answer", None)
            reply = {**((partial.reply if partial else None) or {}), "answers": self._answers}
        queue = self._guarded.gate.queue if self._guarded else ""
        return Attempt(self._unit, answer, error, calls=tuple(self._calls), reply=reply, queue=queue, **facts)

    def call(self, key: str, send: Callable[[], Answer]) -> Answer:
        """Make one call of the page, a `protocols.Call`; or return its answer, if that was paid for already: by this
        page's earlier attempts, or by a worker that was lost before it could record the answer."""
        digest = key or str(self.facts.get("cache_key", ""))
        answer = self._on_record(digest) or self._kept(digest) or self._called(digest, send)
        self._answers[digest] = {"text": answer.text, "truncated": answer.truncated, "model": answer.model}
        return answer

    def _on_record(self, digest: str) -> Answer | None:
        """Return the answer if it is in the ledger, but its page was not converted since."""
        if self._rejected is None:
            c, unit = ATTEMPTS.c, self._unit
            of_page = and_(c.document_id == unit.document_id, c.page == unit.page)
            last = select(func.max(c.id)).where(of_page, c.status == "completed").scalar_subquery()
            since = c.id > func.coalesce(last, 0)
            query = select(c.reply).where(of_page, c.status != "completed", c.reply.is_not(None), since).order_by(c.id)
            with self._context.db.read() as session:
                replies = session.execute(query).scalars().all()
            self._rejected = {name: known for reply in replies for name, known in reply.get("answers", {}).items()}
        known = self._rejected.get(digest)
        return Answer(known["text"], known["model"], truncated=known["truncated"]) if known else None

    def _kept(self, digest: str) -> Answer | None:
        """Return the answer that `_called` wrote for this page before its worker was lost; None without one."""
        kept_answer = kept_answers.recall(self._context.settings.answer_dir, _subject(self._unit), digest)
        if kept_answer is None or kept_answer.content is None:
            return None
        self._calls.append(kept_answer.trace | {"kept": kept_answer.path})
        answer = result_of(kept_answer.content)
        assert isinstance(answer, Answer)
        return answer

    def _called(self, digest: str, send: Callable[[], Answer]) -> Answer:
        began_at, began = self._context.db.now(), time.monotonic()
        call_id = uuid4().hex

        def record(answer: Answer | None, error: UnitError | None = None) -> dict[str, Any]:
            took_ms = int((time.monotonic() - began) * 1000)
            paid = answer or getattr(error, "answer", None)
            cost = self._guarded.cost_of(*charged(paid)) if paid and self._guarded else 0.0
            queue = self._guarded.gate.queue if self._guarded else ""
            model = str(self.facts["model"])
            return page.trace(
                self._unit, call_id, model, answer, error, latency_ms=took_ms, cost=cost, queue=queue, began_at=began_at
            )

        try:
            answer = self._admitted(send)
        except GateClosed:
            raise
        except UnitError as error:
            self._calls.append(record(None, error))
            raise
        trace = record(answer)
        folder, subject = self._context.settings.answer_dir, _subject(self._unit)
        kept = kept_answers.keep(folder, subject, digest, trace, kept_form(answer))
        self._calls.append(trace | {"kept": kept})
        return answer

    def _admitted(self, send: Callable[[], Answer]) -> Answer:
        """Make a call through the gate. A further call of the same page waits there for a moment."""
        if self._guarded is None:
            return send()
        for pause in (*([_PATIENCE_S] * _WAITS if self._has_called else ()), None):
            try:
                answer = self._guarded.call(send, charged)
            except GateClosed as closed:
                wait_s = closed.retry_after_s or 0.0
                if pause is None or wait_s > pause:
                    raise
                time.sleep(max(wait_s, 0.05))
            else:
                self._has_called = True
                return answer
        raise AssertionError
