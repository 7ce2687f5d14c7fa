"""A batch's second step: a worker claims the whole batch and turns its segments into nodes.

Rules: docs/sources/screenshots.md#expansion.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy import and_, select, update
from sqlalchemy.orm import Session

from pipeline.engine import traces
from pipeline.engine import work as units
from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.guarded_call import GuardedCall
from pipeline.engine.kept_answers import Subject
from pipeline.engine.settled import Settled
from pipeline.engine.transaction import Tx
from pipeline.engine.views import view_of
from pipeline.engine.work import Outcome
from pipeline.flows.screenshots.graph import nodes
from pipeline.flows.screenshots.graph.models import CALLS, THREADS
from pipeline.flows.screenshots.live_settings import CONTROL
from pipeline.flows.screenshots.models import BATCHES
from pipeline.flows.screenshots.rules import heuristics, prompts
from pipeline.flows.screenshots.rules.batches import HistoryPack, shot_of, waited_ms
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
from pipeline.flows.screenshots.rules.schemas import EXPAND_SCHEMA, ExpandReply, Segment, VlmIndex
from pipeline.flows.screenshots.scopes import FLOW, Scope
from pipeline.flows.screenshots.states import BATCH, Ask, Origin, Step, WorkEvent, WorkStatus
from pipeline.flows.screenshots.work import batch, retry
from pipeline.flows.screenshots.work.message import Message, UsedCall, problem_of, provider_and_model
from pipeline.providers import registry
from pipeline.providers.protocols import Answer
from pipeline.providers.replies import BadReply, clean
from pipeline.providers.traced_call import NO_GATE
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
TRIES = 3
"""Attempts of the text model after transient errors; then segments become nodes directly."""


WORK = batch.kind(
    "batch",
    BATCHES,
    BATCH,
    BATCHES.c.id,
    batch.lock,
    (BATCHES.c.id,),
    BATCHES.c.step == Step.EXPAND,  # during the analysis, workers claim shards
)


@dataclass(frozen=True)
class BatchUnit:
    """A batch claimed for its expansion, with the fields that settle it."""

    id: int
    attempts: int
    claim_id: str
    shots: list[Any] = field(repr=False)
    row: Any = field(repr=False)

    @property
    def index(self) -> VlmIndex:
        return VlmIndex.model_validate_json(self.row.index_json)

    @property
    def facts(self) -> BatchFacts:
        # Count deleted frames too: segments name frames by their original positions in the batch.
        known = {shot.id: shot for shot in self.shots}
        places = enumerate(json.loads(self.row.shot_ids), start=1)
        screens = {place: shot_of(known[shot_id]) for place, shot_id in places if shot_id in known}
        history = HistoryPack.model_validate_json(self.row.history_pack)
        return BatchFacts(self.row.idempotency_key, self.row.source_key, screens, frozenset(history.thread_ids))

    @property
    def made_by(self) -> Origin:
        """The origin of the segments, and of the nodes if no text model makes them."""
        return Origin.RULES if heuristics.NOTE in self.row.notes else Origin.DIRECT


def claim(context: Context, batch_id: int, owner: Owner) -> BatchUnit | None:
    """Claim an analysed batch for its expansion; None if it is not due.

    A redelivered message first gives back the claims of its earlier delivery.
    """

    def act(tx: Tx) -> BatchUnit | None:
        row = batch.lock(tx, batch_id)
        if row is None or row.step != Step.EXPAND:
            return None
        waited = waited_ms(row, tx.now)
        claimed = units.claim_next(tx, WORK, row, owner, error=None, rests_since=None, waited_ms=waited)
        if claimed is None:
            return None
        return view_of(BatchUnit, claimed, shots=batch.shots_of(tx, claimed.shot_ids), row=claimed)

    return context.db.run(act)


def settle(
    context: Context,
    unit: BatchUnit,
    expansion: Expansion,
    made_by: Origin,
    *,
    text_ms: int = 0,
    trace: dict[str, Any] | None = None,
) -> list[int] | None:
    """Write the batch's nodes and finish it; return the ids of new nodes, or None if the claim is lost."""

    def act(tx: Tx) -> list[int] | None:
        row = _begin(tx, unit, trace)
        if row is None or row.claim_id != unit.claim_id:
            return None
        expansions = and_(CALLS.c.batch_id == unit.id, CALLS.c.operation == Operation.EXPAND)
        model = tx.execute(select(CALLS.c.model).where(expansions).order_by(CALLS.c.id.desc()).limit(1)).scalar()
        new = nodes.write(tx, unit.id, expansion, model or "")
        notes = batch.as_notes([*json.loads(row.notes), *expansion.notes])
        values = {"text_ms": row.text_ms + text_ms, "made_by": made_by, "notes": notes, "finished_at": tx.now}
        units.settle(tx, WORK, row, Outcome(unit, values=values))
        tx.launch(FLOW, Scope.BATCHES, Scope.VECTORS)
        return new

    return context.db.run(act)


def fail(context: Context, unit: BatchUnit, error: UnitError, trace: dict[str, Any] | None = None) -> Settled:
    """Settle a failed expansion: the batch waits for a retry, is released without counting an attempt, or becomes a
    dead letter."""

    def act(tx: Tx) -> Settled:
        row = _begin(tx, unit, trace)
        tx.launch(FLOW, Scope.BATCHES)
        ended = Outcome(unit, error, values={"rests_since": tx.now})
        return retry.settled(tx, units.settle(tx, WORK, row, ended), error)

    return context.db.run(act)


def release(context: Context, unit: BatchUnit, reply: str, trace: dict[str, Any] | None) -> Settled:
    """Give a batch back with its unusable reply: another message of the same attempt repairs the reply once."""

    values = {"attempts": unit.attempts - 1, "reply": reply, "ask": Ask.REPAIR}
    back = Outcome(unit, event=WorkEvent.STEP_DONE, values=values)

    def act(tx: Tx) -> Settled:
        moved = units.settle(tx, WORK, _begin(tx, unit, trace), back)
        return Settled(requeue=True, status=WorkStatus.PENDING) if moved else Settled()

    return context.db.run(act)


def keep_reply(context: Context, unit: BatchUnit, reply: str, trace: dict[str, Any] | None, call: UsedCall) -> bool:
    """Store a paid reply before using it; return False if the claim is lost."""

    def act(tx: Tx) -> bool:
        row = _begin(tx, unit, trace)
        if row is None or row.claim_id != unit.claim_id:
            return False
        if (row.reply, row.ask) != (reply, Ask.FIRST):  # otherwise an earlier commit, whose answer was lost, stored it
            statement = update(BATCHES).where(BATCHES.c.id == unit.id)
            tx.execute(statement.values(reply=reply, ask=Ask.FIRST, updated_at=tx.now))
            call.record(tx, batch_id=unit.id)
        return True

    return context.db.run(act)


def _begin(session: Session, unit: BatchUnit, trace: dict[str, Any] | None) -> Any | None:
    row = batch.lock(session, unit.id)
    traces.record(session, trace, deleted=row is None)
    return row


@dataclass(frozen=True)
class Draft:
    """A claimed batch, its segments with their threads, and notes about corrections."""

    unit: BatchUnit
    segments: list[tuple[Segment, str]]
    notes: tuple[str, ...]

    def noting(self, note: str) -> "Draft":
        return replace(self, notes=(*self.notes, note))


class ExpandMessage(Message):
    """A message that expands a batch's segments to nodes."""

    def __init__(self, context: Context, batch_id: int, queue: str, owner: Owner, guarded: GuardedCall | None) -> None:
        super().__init__(context, queue, owner, guarded)
        self._batch_id = batch_id
        self._started = time.monotonic()

    def run(self) -> Settled:
        """Make the batch's nodes; without a usable reply, directly from its segments.

        Errors settle the batch, and are not raised.
        """
        unit = claim(self._context, self._batch_id, self._owner)
        if unit is None:
            return Settled()
        try:
            return self._expand(self._draft(unit))
        except Exception as raised:  # noqa: BLE001  # the row records any error
            error, trace = retry.as_unit_error(raised), self._tracer.trace_of(raised)
        log.warning("expansion.failed", batch=unit.id, kind=str(error.kind), error=str(error))
        tries = unit.attempts + unit.row.releases
        if error.kind not in retry.RELEASED and (error.kind is not ErrorKind.TRANSIENT or tries >= TRIES):
            # Convert segments directly: the text model would only add to them.
            try:
                return self._direct(self._draft(unit).noting(f"the text model failed: {error}"))
            except Exception as raised:  # noqa: BLE001  # a dead letter, not a claim that stays
                error, trace = retry.as_unit_error(raised), self._tracer.trace_of(raised)
        return fail(self._context, unit, error, trace)

    def _draft(self, unit: BatchUnit) -> Draft:
        facts = unit.facts
        threads = with_threads(unit.index, facts)
        segments = threads.value
        if unit.made_by is Origin.RULES:
            # Batches analysed at the same time are not in each other's history: look for threads of the same titles.
            titles = [heuristics.title_of(segment, facts.screens) for segment, _ in segments]
            late = late_threads(self._context, unit, titles)
            segments = [
                (segment, late.get(title, thread)) for (segment, thread), title in zip(segments, titles, strict=True)
            ]
        return Draft(unit, segments, threads.notes)

    def _expand(self, draft: Draft) -> Settled:
        unit = draft.unit
        if not draft.segments:
            return self._settle(draft, Expansion((), ()), unit.made_by)
        if unit.row.reply and unit.row.ask == Ask.FIRST:
            # An earlier attempt paid for this reply, and died before it wrote the nodes.
            return self._use(draft, read_expansion(unit.row.reply))
        if self._queue == CONTROL:
            # No text model is available for a repair: use the valid parts of the paid reply.
            parts = usable_expansion(unit.row.reply) if unit.row.reply else None
            return self._use(draft, parts) if parts else self._direct(draft)
        return self._ask(draft)

    def _direct(self, draft: Draft) -> Settled:
        unit, made_by = draft.unit, draft.unit.made_by
        noted = draft if made_by is Origin.RULES else draft.noting(heuristics.TEXT_NOTE)
        return self._settle(noted, direct(unit.facts, draft.segments, unit.index, made_by), made_by)

    def _ask(self, draft: Draft) -> Settled:
        if self._guarded is None:
            raise UnitError(NO_GATE, kind=ErrorKind.PERMANENT)
        unit, settings = draft.unit, self._context.settings
        text = registry.text(settings, *provider_and_model(self._context, self._queue, "text"))
        evidence = evidence_of(unit.index, unit.facts)
        prompt = prompts.expand_prompt(
            unit.facts, draft.segments, evidence, self._context.db.now(), settings.screenshots.time_zone
        )
        earlier = unit.row.reply if unit.row.ask == Ask.REPAIR else None
        if earlier is not None:
            prompt = prompts.repair_prompt(prompt, earlier, problem_of(earlier, read_expansion))
        subject = Subject(FLOW, str(unit.id), "expand", unit.claim_id)
        batch.outlast(self._context, WORK, [unit], text.name)
        # Not the prompt itself: it contains the time, on which the answer does not depend.
        request = [prompts.EXPAND_SYSTEM, unit.row.index_json, earlier or ""]
        answer = self._tracer.call(
            subject,
            "text",
            Operation.EXPAND.value,
            text.name,
            text.model,
            request,
            lambda: text.complete(prompt, system=prompts.EXPAND_SYSTEM, json_schema=EXPAND_SCHEMA),
        )
        digest = prompts.prompt_hash(prompts.EXPAND_SYSTEM, prompt)
        used = UsedCall(
            Operation.EXPAND,
            text.name,
            answer.model or text.model,
            digest,
            unit.attempts,
            Ask(unit.row.ask),
            [shot.id for shot in unit.shots],
        )
        return self._read(draft, answer, earlier, used)

    def _read(self, draft: Draft, answer: Answer, earlier: str | None, used: UsedCall) -> Settled:
        """Store a usable reply. Release the batch once for the repair of an unusable one, then use its valid parts."""
        unit, text = draft.unit, clean(answer.text)
        try:
            reply: ExpandReply | None = read_expansion(text)
        except BadReply as bad:
            log.warning("expansion.reply_unusable", batch=unit.id, problem=str(bad))
            if earlier is None and not answer.truncated:
                return release(self._context, unit, text, self._tracer.trace)
            reply = usable_expansion(text) or (usable_expansion(earlier) if earlier else None)
            draft = draft.noting(f"used only the valid parts of the text model's reply: {bad}")
        if reply is None:
            return self._direct(draft)
        if not keep_reply(self._context, unit, reply.model_dump_json(), self._tracer.trace, used):
            return Settled()
        self._tracer.trace = None
        return self._use(draft, reply)

    def _use(self, draft: Draft, reply: ExpandReply) -> Settled:
        unit = draft.unit
        return self._settle(draft, expanded(unit.facts, draft.segments, reply, unit.index), Origin.MODEL)

    def _settle(self, draft: Draft, expansion: Expansion, made_by: Origin) -> Settled:
        text_ms = int((time.monotonic() - self._started) * 1000)
        noted = replace(expansion, notes=(*draft.notes, *expansion.notes))
        new = settle(self._context, draft.unit, noted, made_by, text_ms=text_ms, trace=self._tracer.trace)
        return Settled() if new is None else Settled(1, status=WorkStatus.SUCCEEDED)


def late_threads(context: Context, unit: BatchUnit, titles: Sequence[str]) -> dict[str, str]:
    """Return, by title, the latest thread with each of these titles that was active within a day of the batch; leave
    out the others."""
    wanted = {title[: nodes.MAX_TITLE]: title for title in titles if title}
    day = timedelta(days=1)
    near = THREADS.c.last_at.between(unit.row.ts_start - day, unit.row.ts_end + day)
    query = select(THREADS.c.title, THREADS.c.id).where(THREADS.c.title.in_(wanted), near).order_by(THREADS.c.last_at)
    with context.db.read() as session:
        return {wanted[row.title]: row.id for row in session.execute(query)}
