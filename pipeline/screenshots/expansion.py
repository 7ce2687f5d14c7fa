"""What one message does with a batch that was analysed: its segments become nodes. Source 000, section 1.6."""

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import structlog
from redis import RedisError

from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.passage import Passage
from pipeline.providers import registry
from pipeline.providers.tracing import NO_GATE, Tracer
from pipeline.screenshots import working
from pipeline.screenshots.analysis import by_rules, prompts
from pipeline.screenshots.analysis.expanding import (
    BatchFacts,
    Expansion,
    direct,
    evidence_of,
    expanded,
    read_expansion,
    usable_expansion,
    with_threads,
)
from pipeline.screenshots.analysis.provenance import Operation
from pipeline.screenshots.analysis.replies import BadReply, clean
from pipeline.screenshots.analysis.schemas import EXPAND_SCHEMA, ExpandReply, Segment
from pipeline.screenshots.batching import HistoryPack, shot_of
from pipeline.screenshots.outcomes import RELEASED, as_unit_error
from pipeline.screenshots.routing import CONTROL, writer_of
from pipeline.screenshots.states import Ask, Origin
from pipeline.screenshots.working import BatchUnit, UsedCall
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
TRIES = 3
"""Attempts of the text model that a passing error may cost; then segments become nodes as they stand."""


@dataclass(frozen=True)
class Made:
    """What a message did. `unit` None: nothing was due. `again`: it should take its place in the queue again."""

    unit: BatchUnit | None = None
    done: bool = False
    again: bool = False
    retry_in_s: float | None = None
    text_ms: int = 0


class ExpandWork:
    """One message's work on a batch. Use as a context manager: leaving it gives the gate's slot back."""

    def __init__(self, context: Context, batch_id: int, queue: str, owner: Owner, passage: Passage | None) -> None:
        self._context = context
        self._batch_id = batch_id
        self._queue = queue
        self._owner = owner
        self._passage = passage
        self._tracer = Tracer(passage)
        self._begun = time.monotonic()

    def __enter__(self) -> "ExpandWork":
        return self

    def __exit__(self, *_: object) -> None:
        if self._passage is not None:
            with suppress(RedisError):
                self._passage.leave()

    def run(self) -> Made:
        """Make the batch's nodes. Where a reply is no use, segments are taken as they stand."""
        unit = working.claim(self._context, self._batch_id, self._owner)
        if unit is None:
            return Made()
        try:
            return self._make(unit)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            log.exception("screenshots.unexpected_error", batch=unit.id)
            what = f"unexpected {type(error).__name__}: {error}"
            working.fail(self._context, unit, UnitError(what, kind=ErrorKind.PERMANENT), self._tracer.trace)
            return Made(unit)

    def _make(self, unit: BatchUnit) -> Made:
        facts = _facts(unit)
        threads = with_threads(unit.index, facts)
        try:
            return self._expand(unit, facts, threads.value, threads.notes)
        except Exception as error:  # noqa: BLE001  # whatever it is, the row says it
            return self._failed(unit, as_unit_error(error), facts, threads.value, threads.notes)

    def _expand(
        self, unit: BatchUnit, facts: BatchFacts, segments: list[tuple[Segment, str]], notes: tuple[str, ...]
    ) -> Made:
        if not segments:
            return self._finish(unit, Expansion((), ()), _origin(unit), notes)
        if unit.row.reply and unit.row.ask == Ask.FIRST:
            # Paid for by an attempt that was lost before its nodes were written.
            reply = read_expansion(unit.row.reply)
            return self._taken(unit, facts, segments, notes, reply)
        if self._queue == CONTROL:
            return self._directly(unit, facts, segments, notes)
        if self._passage is None:
            raise UnitError(NO_GATE, kind=ErrorKind.PERMANENT)
        return self._ask(unit, facts, segments, notes)

    def _directly(
        self, unit: BatchUnit, facts: BatchFacts, segments: list[tuple[Segment, str]], notes: tuple[str, ...]
    ) -> Made:
        made_by = _origin(unit)
        told = () if made_by is Origin.RULES else (by_rules.TEXT_NOTE,)
        return self._finish(unit, direct(facts, segments, unit.index, made_by), made_by, (*notes, *told))

    def _ask(
        self, unit: BatchUnit, facts: BatchFacts, segments: list[tuple[Segment, str]], notes: tuple[str, ...]
    ) -> Made:
        settings = self._context.settings
        provider, model = writer_of(settings, self._queue)
        writer = registry.text(settings, provider, model)
        zone = settings.screenshots.time_zone
        evidence = evidence_of(unit.index, facts)
        prompt = prompts.expand_prompt(facts, segments, evidence, datetime.now(UTC), zone)
        first = unit.row.reply if unit.row.ask == Ask.REPAIR else None
        if first is not None:
            prompt = prompts.repair_prompt(prompt, first, _problem(first))
        answer = self._tracer.call(
            "text", Operation.EXPAND.value, writer.name, writer.model,
            lambda: writer.complete(prompt, system=prompts.EXPAND_SYSTEM, json_schema=EXPAND_SCHEMA),
        )  # fmt: skip
        text = clean(answer.text)
        digest = prompts.prompt_hash(prompts.EXPAND_SYSTEM, prompt)
        used = self._used(unit, writer.name, answer.model or writer.model, digest)
        try:
            reply: ExpandReply | None = read_expansion(text)
        except BadReply as bad:
            log.warning("expansion.reply_unusable", batch=unit.id, problem=str(bad))
            if first is None and not answer.truncated:
                kept = working.keep_reply(self._context, unit, text, self._tracer.trace, None)
                return Made(unit, again=kept)
            reply = usable_expansion(text) or (usable_expansion(first) if first else None)
            notes = (*notes, f"only the valid parts of the text model's reply were taken: {bad}")
        if reply is None:
            return self._directly(unit, facts, segments, notes)
        if not working.keep_reply(self._context, unit, reply.model_dump_json(), self._tracer.trace, used):
            return Made(unit)
        self._tracer.trace = None
        return self._taken(unit, facts, segments, notes, reply)

    def _taken(
        self, unit: BatchUnit, facts: BatchFacts, segments: list[tuple[Segment, str]], notes: tuple[str, ...],
        reply: ExpandReply,
    ) -> Made:  # fmt: skip
        return self._finish(unit, expanded(facts, segments, reply, unit.index), Origin.MODEL, notes)

    def _failed(
        self, unit: BatchUnit, error: UnitError, facts: BatchFacts, segments: list[tuple[Segment, str]],
        notes: tuple[str, ...],
    ) -> Made:  # fmt: skip
        log.warning("expansion.failed", batch=unit.id, kind=str(error.kind), error=str(error))
        waits = error.kind in RELEASED
        if waits or (error.kind is ErrorKind.TRANSIENT and unit.attempts < TRIES):
            failed = working.fail(self._context, unit, error, self._tracer.trace)
            return Made(unit, again=waits and failed.event is not None, retry_in_s=failed.retry_in_s)
        return self._directly(unit, facts, segments, (*notes, f"the text model failed: {error}"))

    def _finish(self, unit: BatchUnit, expansion: Expansion, made_by: Origin, notes: tuple[str, ...]) -> Made:
        text_ms = int((time.monotonic() - self._begun) * 1000)
        noted = replace(expansion, notes=(*notes, *expansion.notes))
        made = working.finish(
            self._context, unit, noted, made_by, text_ms=text_ms, trace=self._tracer.trace
        )  # fmt: skip
        return Made(unit, done=made is not None, text_ms=text_ms)

    def _used(self, unit: BatchUnit, provider: str, model: str, digest: str) -> UsedCall:
        ids = [shot.id for shot in unit.shots]
        return UsedCall(Operation.EXPAND, provider, model, digest, unit.attempts, Ask(unit.row.ask), ids)


def _facts(unit: BatchUnit) -> BatchFacts:
    # Places in the batch, also where frames were deleted since: segments name them by these.
    known = {shot.id: shot for shot in unit.shots}
    ids: list[Any] = working.ids_of(unit.row.shot_ids)
    screens = {place: shot_of(known[shot_id]) for place, shot_id in enumerate(ids, start=1) if shot_id in known}
    history = HistoryPack.model_validate_json(unit.row.history_pack)
    return BatchFacts(unit.row.idempotency_key, unit.row.source_key, screens, frozenset(history.thread_ids))


def _origin(unit: BatchUnit) -> Origin:
    """Who made the segments, where no text model makes the nodes."""
    return Origin.RULES if by_rules.NOTE in unit.row.notes else Origin.DIRECT


def _problem(reply: str) -> str:
    try:
        read_expansion(reply)
    except BadReply as bad:
        return str(bad)
    return "it was cut off"
