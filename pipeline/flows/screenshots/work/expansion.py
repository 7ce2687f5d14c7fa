"""What one message does with a batch that was analysed: its segments become nodes. Source 000, section 1.6."""

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import structlog

from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.guarded_call import GuardedCall
from pipeline.flows.screenshots.routes import CONTROL, writer_of
from pipeline.flows.screenshots.rules import heuristics, prompts
from pipeline.flows.screenshots.rules.batches import HistoryPack, shot_of
from pipeline.flows.screenshots.rules.expansion import (
    BatchFacts,
    Expansion,
    direct,
    evidence_of,
    expanded,
    read_expansion,
    usable_expansion,
    with_threads,
)
from pipeline.flows.screenshots.rules.provenance import Operation
from pipeline.flows.screenshots.rules.schemas import EXPAND_SCHEMA, ExpandReply, Segment
from pipeline.flows.screenshots.states import Ask, Origin
from pipeline.flows.screenshots.work import batch
from pipeline.flows.screenshots.work.batch import BatchUnit, UsedCall
from pipeline.flows.screenshots.work.message import MessageWork
from pipeline.flows.screenshots.work.outcome import RELEASED, as_unit_error
from pipeline.providers import registry
from pipeline.providers.protocols import Answer
from pipeline.providers.replies import BadReply, clean
from pipeline.providers.traced_call import NO_GATE
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


@dataclass(frozen=True)
class _Told:
    """A batch with what is known of it: its segments with their threads, and what was put right on the way."""

    unit: BatchUnit
    facts: BatchFacts
    segments: list[tuple[Segment, str]]
    notes: tuple[str, ...]

    def noting(self, note: str) -> "_Told":
        return replace(self, notes=(*self.notes, note))


class ExpandWork(MessageWork):
    """One message's work on a batch: its segments become nodes."""

    def __init__(self, context: Context, batch_id: int, queue: str, owner: Owner, guarded: GuardedCall | None) -> None:
        super().__init__(context, queue, owner, guarded)
        self._batch_id = batch_id
        self._begun = time.monotonic()

    def run(self) -> Made:
        """Make the batch's nodes. Where a reply is no use, segments are taken as they stand."""
        unit = batch.claim(self._context, self._batch_id, self._owner)
        if unit is None:
            return Made()
        try:
            return self._expand(self._told(unit))
        except Exception as error:  # noqa: BLE001  # whatever it is, the row says it
            return self._failed(unit, as_unit_error(error))

    def _failed(self, unit: BatchUnit, error: UnitError) -> Made:
        """The batch waits, or its segments are taken as they stand: the text model only adds to what is known."""
        log.warning("expansion.failed", batch=unit.id, kind=str(error.kind), error=str(error))
        waits = error.kind in RELEASED
        if waits or (error.kind is ErrorKind.TRANSIENT and unit.attempts < TRIES):
            failed = batch.fail(self._context, unit, error, self._tracer.trace)
            return Made(unit, again=waits and failed.event is not None, retry_in_s=failed.retry_in_s)
        try:
            return self._directly(self._told(unit).noting(f"the text model failed: {error}"))
        except Exception as also:  # noqa: BLE001  # a dead letter, not a claim that stays
            failure = as_unit_error(also)
            failed = batch.fail(self._context, unit, failure, self._tracer.trace)
            return Made(unit, retry_in_s=failed.retry_in_s)

    def _told(self, unit: BatchUnit) -> _Told:
        facts = _facts(unit)
        threads = with_threads(unit.index, facts)
        segments = threads.value
        if _origin(unit) is Origin.RULES:
            # Batches that are looked at at once were not told of one another: by rules, a title is a thread.
            titles = [heuristics.title_of(segment, facts.screens) for segment, _ in segments]
            late = batch.late_threads(self._context, unit, titles)
            segments = [
                (segment, late.get(title, thread)) for (segment, thread), title in zip(segments, titles, strict=True)
            ]
        return _Told(unit, facts, segments, threads.notes)

    def _expand(self, told: _Told) -> Made:
        unit = told.unit
        if not told.segments:
            return self._finish(told, Expansion((), ()), _origin(unit))
        if unit.row.reply and unit.row.ask == Ask.FIRST:
            # Paid for by an attempt that was lost before its nodes were written.
            return self._taken(told, read_expansion(unit.row.reply))
        if self._queue == CONTROL:
            # What was paid for is used as far as it goes, where nobody is left to mend it.
            parts = usable_expansion(unit.row.reply) if unit.row.reply else None
            return self._taken(told, parts) if parts else self._directly(told)
        return self._ask(told)

    def _directly(self, told: _Told) -> Made:
        made_by = _origin(told.unit)
        noted = told if made_by is Origin.RULES else told.noting(heuristics.TEXT_NOTE)
        return self._finish(noted, direct(told.facts, told.segments, told.unit.index, made_by), made_by)

    def _ask(self, told: _Told) -> Made:
        if self._guarded is None:
            raise UnitError(NO_GATE, kind=ErrorKind.PERMANENT)
        unit, settings = told.unit, self._context.settings
        provider, model = writer_of(settings, self._queue)
        writer = registry.text(settings, provider, model)
        prompt, first = self._prompt(told)
        answer = self._tracer.call(
            "text", Operation.EXPAND.value, writer.name, writer.model,
            lambda: writer.complete(prompt, system=prompts.EXPAND_SYSTEM, json_schema=EXPAND_SCHEMA),
        )  # fmt: skip
        digest = prompts.prompt_hash(prompts.EXPAND_SYSTEM, prompt)
        used = UsedCall(
            Operation.EXPAND, writer.name, answer.model or writer.model, digest, unit.attempts, Ask(unit.row.ask),
            [shot.id for shot in unit.shots],
        )  # fmt: skip
        return self._read(told, answer, first, used)

    def _prompt(self, told: _Told) -> tuple[str, str | None]:
        """(what to ask, the reply that is to be mended, if there is one)."""
        zone = self._context.settings.screenshots.time_zone
        evidence = evidence_of(told.unit.index, told.facts)
        prompt = prompts.expand_prompt(told.facts, told.segments, evidence, datetime.now(UTC), zone)
        first = told.unit.row.reply if told.unit.row.ask == Ask.REPAIR else None
        return (prompts.repair_prompt(prompt, first, _problem(first)) if first is not None else prompt), first

    def _read(self, told: _Told, answer: Answer, first: str | None, used: UsedCall) -> Made:
        """Store what the reply says; where it is no use, have it mended once, then take the parts that are valid."""
        unit, text = told.unit, clean(answer.text)
        try:
            reply: ExpandReply | None = read_expansion(text)
        except BadReply as bad:
            log.warning("expansion.reply_unusable", batch=unit.id, problem=str(bad))
            if first is None and not answer.truncated:
                kept = batch.keep_reply(self._context, unit, text, self._tracer.trace, None)
                return Made(unit, again=kept)
            reply = usable_expansion(text) or (usable_expansion(first) if first else None)
            told = told.noting(f"only the valid parts of the text model's reply were taken: {bad}")
        if reply is None:
            return self._directly(told)
        if not batch.keep_reply(self._context, unit, reply.model_dump_json(), self._tracer.trace, used):
            return Made(unit)
        self._tracer.trace = None
        return self._taken(told, reply)

    def _taken(self, told: _Told, reply: ExpandReply) -> Made:
        return self._finish(told, expanded(told.facts, told.segments, reply, told.unit.index), Origin.MODEL)

    def _finish(self, told: _Told, expansion: Expansion, made_by: Origin) -> Made:
        text_ms = int((time.monotonic() - self._begun) * 1000)
        noted = replace(expansion, notes=(*told.notes, *expansion.notes))
        made = batch.finish(
            self._context, told.unit, noted, made_by, text_ms=text_ms, trace=self._tracer.trace
        )  # fmt: skip
        return Made(told.unit, done=made is not None, text_ms=text_ms)


def _facts(unit: BatchUnit) -> BatchFacts:
    # Places in the batch, also where frames were deleted since: segments name them by these.
    known = {shot.id: shot for shot in unit.shots}
    ids: list[Any] = batch.ids_of(unit.row.shot_ids)
    screens = {place: shot_of(known[shot_id]) for place, shot_id in enumerate(ids, start=1) if shot_id in known}
    history = HistoryPack.model_validate_json(unit.row.history_pack)
    return BatchFacts(unit.row.idempotency_key, unit.row.source_key, screens, frozenset(history.thread_ids))


def _origin(unit: BatchUnit) -> Origin:
    """Who made the segments, where no text model makes the nodes."""
    return Origin.RULES if heuristics.NOTE in unit.row.notes else Origin.DIRECT


def _problem(reply: str) -> str:
    try:
        read_expansion(reply)
    except BadReply as bad:
        return str(bad)
    return "it was cut off"
