"""Analyses shards, the parts of a batch that fit one call.

Rules: docs/sources/screenshots.md#shards.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import structlog
from sqlalchemy import select

from pipeline.engine import traces
from pipeline.engine import work as units
from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.guarded_call import GuardedCall
from pipeline.engine.kept_answers import Subject
from pipeline.engine.settled import Settled
from pipeline.engine.transaction import Tx
from pipeline.engine.views import view_of
from pipeline.engine.work import Changes, Outcome
from pipeline.flows.screenshots.frames import renditions, retention
from pipeline.flows.screenshots.live_settings import CPU
from pipeline.flows.screenshots.models import SHARDS
from pipeline.flows.screenshots.rules import heuristics, prompts, vision_reply
from pipeline.flows.screenshots.rules.batches import HistoryPack, Shot, shot_of
from pipeline.flows.screenshots.rules.headings import SeenLine
from pipeline.flows.screenshots.rules.provenance import Operation
from pipeline.flows.screenshots.rules.schemas import INDEX_SCHEMA, VlmIndex
from pipeline.flows.screenshots.scopes import FLOW, scope_of
from pipeline.flows.screenshots.states import SHARD, Ask, Origin, Step, WorkEvent, WorkStatus
from pipeline.flows.screenshots.work import batch, retry
from pipeline.flows.screenshots.work.message import Message, UsedCall, problem_of, provider_and_model
from pipeline.flows.screenshots.work.pictures import Pictures
from pipeline.providers import registry
from pipeline.providers.protocols import Answer
from pipeline.providers.replies import BadReply, Read, clean
from pipeline.providers.traced_call import NO_GATE
from pipeline.reading.ocr.screen_frames import jpeg_of
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
Loaded = TypeVar("Loaded")
CUT = "the reply stops at its token limit: raise the provider's MAX_TOKENS, or lower PENSTOCK_SCREENSHOTS__SHARD_SIZE"


@dataclass(frozen=True)
class ShardUnit:
    """A claimed shard. `shots`: its frames by screen id, their position in the batch from 1."""

    id: int
    batch_id: int
    attempts: int
    claim_id: str
    history: HistoryPack
    row: Any = field(repr=False)
    shots: dict[int, Any] = field(repr=False)


WORK = batch.kind("shard", SHARDS, SHARD, SHARDS.c.batch_id, batch.lock, (SHARDS.c.releases, SHARDS.c.number))


def claim(context: Context, batch_id: int, owner: Owner) -> ShardUnit | None:
    """Claim the batch's next due shard; None if none is due, or the batch is not under analysis.

    A redelivered message first gives back the claims of its earlier delivery.
    """

    def act(tx: Tx) -> ShardUnit | None:
        row = batch.lock(tx, batch_id)
        if row is None or row.step != Step.ANALYSE or row.status != WorkStatus.RUNNING:
            return None
        shard = units.claim_next(tx, WORK, row, owner)
        if shard is None:
            return None
        places = {shot_id: place for place, shot_id in enumerate(json.loads(row.shot_ids), start=1)}
        shots = {places[shot.id]: shot for shot in batch.shots_of(tx, shard.shot_ids)}
        history = HistoryPack.model_validate_json(row.history_pack)
        return view_of(ShardUnit, shard, history=history, row=shard, shots=shots)

    return context.db.run(act)


def settle(
    context: Context,
    unit: ShardUnit,
    index: VlmIndex,
    call: UsedCall,
    notes: Sequence[str] = (),
    trace: dict[str, Any] | None = None,
) -> Settled:
    """Store a shard's result at once, independently of its siblings.

    `Settled.changed`: no shard of the batch is open now.
    """

    values = {
        "result": index.model_dump_json(),
        "reply": None,
        "model": call.model[:120],
        "notes": batch.as_notes(notes),
    }

    def act(tx: Tx) -> Settled:
        if not _settle(tx, Outcome(unit, values=values), unit, trace):
            return Settled()
        if call.shot_ids:
            call.record(tx, batch_id=unit.batch_id)
        return Settled(1, status=WorkStatus.SUCCEEDED, changed=_is_last(tx, unit))

    return context.db.run(act)


def fail(context: Context, unit: ShardUnit, error: UnitError, trace: dict[str, Any] | None = None) -> Settled:
    """Settle a failed shard: it waits for a retry, is released without counting an attempt, or is dead. Its siblings'
    results stay.

    `Settled.changed`: no shard of the batch is open now.
    """

    def act(tx: Tx) -> Settled:
        changes = _settle(tx, Outcome(unit, error), unit, trace)
        return replace(retry.settled(tx, changes, error), changed=bool(changes) and _is_last(tx, unit))

    return context.db.run(act)


def release(context: Context, unit: ShardUnit, reply: str, trace: dict[str, Any] | None) -> Settled:
    """Give a shard back with its unusable reply: another message of the same attempt repairs the reply once."""

    values = {"attempts": unit.attempts - 1, "reply": reply, "ask": Ask.REPAIR}
    back = Outcome(unit, event=WorkEvent.STEP_DONE, values=values)

    def act(tx: Tx) -> Settled:
        return Settled(requeue=True, status=WorkStatus.PENDING) if _settle(tx, back, unit, trace) else Settled()

    return context.db.run(act)


def _settle(tx: Tx, outcome: Outcome, unit: ShardUnit, trace: dict[str, Any] | None) -> Changes:
    row = batch.lock(tx, unit.batch_id)
    traces.record(tx, trace, deleted=row is None)
    return units.settle(tx, WORK, row, outcome)


def _is_last(tx: Tx, unit: ShardUnit) -> bool:
    """Whether all shards of the locked batch have ended; if so, launch the batch, to merge their results."""
    under_way = SHARDS.c.status.in_([WorkStatus.PENDING, WorkStatus.RUNNING])
    query = select(SHARDS.c.id).where(SHARDS.c.batch_id == unit.batch_id, under_way).limit(1)
    is_last = tx.execute(query).first() is None
    if is_last:
        tx.launch(FLOW, scope_of(unit.batch_id))
    return is_last


class ShardMessage(Message):
    """A message that analyses a batch's next shard."""

    def __init__(
        self,
        context: Context,
        batch_id: int,
        queue: str,
        owner: Owner,
        guarded: GuardedCall | None,
        timed_out: type[Exception] = TimeoutError,
        pictures: Pictures | None = None,
    ) -> None:
        super().__init__(context, queue, owner, guarded)
        self._batch_id = batch_id
        self._pictures = pictures
        self._timed_out = timed_out

    def run(self) -> Settled:
        """Analyse the next due shard, if any. Errors of the shard settle it and are not raised."""
        unit = claim(self._context, self._batch_id, self._owner)
        if unit is None:
            return Settled()
        if self._pictures is not None and self._queue != CPU:
            # In parallel to this message's call.
            self._pictures.make_ahead(self._context)
        try:
            return self._analyse(unit)
        except self._timed_out:
            error = UnitError("text recognition of these screenshots took too long", code="timeout")
            trace = self._tracer.trace
        except Exception as raised:  # noqa: BLE001  # the row records any error
            error, trace = retry.as_unit_error(raised), self._tracer.trace_of(raised)
        log.warning("shard.failed", batch=unit.batch_id, shard=unit.id, kind=str(error.kind), error=str(error))
        return fail(self._context, unit, error, trace)

    def _analyse(self, unit: ShardUnit) -> Settled:
        lines: dict[int, list[SeenLine]] = {}
        pictures: dict[int, bytes] = {}
        if self._queue == CPU:
            batch.outlast(self._context, WORK, [unit])
            lines = dict(self._load(unit, self._recognise))
            for screen, seen_lines in lines.items():
                renditions.keep(self._context.settings, unit.shots[screen].file, seen_lines)
        else:
            pictures = dict(self._load(unit, self._pictures.take if self._pictures else jpeg_of))
        seen = lines or pictures
        screens = {screen: shot_of(unit.shots[screen]) for screen in seen}
        notes, total = [], len(json.loads(unit.row.shot_ids))
        if len(seen) < total:
            lost = total - len(seen)
            notes = [f"deleted or damaged before the analysis: {lost} of {total} screenshots"]
        if not seen:
            used = UsedCall(Operation.ANALYSE, "", "", "", unit.attempts, Ask(unit.row.ask), [])
            return self._settle(unit, Read(VlmIndex(segments=[])), notes, used)
        if pictures:
            return self._ask(unit, screens, [picture for _, picture in sorted(pictures.items())], notes)
        # Without a provider, use window titles, recognised text and rules.
        read = {screens[screen].id: seen_lines for screen, seen_lines in lines.items()}
        texts = {shot_id: "\n".join(line.text for line in seen_lines) for shot_id, seen_lines in read.items()}
        index = heuristics.index_by_rules(screens, texts, unit.history, read)
        shot_ids = sorted(shot.id for shot in screens.values())
        used = UsedCall(Operation.RULES, "local", Origin.RULES.value, "", unit.attempts, Ask.FIRST, shot_ids)
        return self._settle(unit, Read(index, (heuristics.NOTE,)), notes, used)

    def _load(self, unit: ShardUnit, load: Callable[[Path], Loaded]) -> Iterator[tuple[int, Loaded]]:
        """Yield (screen id, loaded picture) for each frame. Frames without a picture fail; the others continue."""
        for screen, shot in unit.shots.items():
            path = retention.image_of(self._context, shot)
            if path is None:
                continue
            try:
                loaded = load(path)
            except UnitError as error:
                if error.code == "unreadable" or error.kind is not ErrorKind.PERMANENT:
                    raise UnitError(str(error)) from error  # the system's fault, not the picture's: a retry may succeed
                retention.give_up(self._context, shot, str(error))
                continue
            yield screen, loaded

    def _recognise(self, path: Path) -> list[SeenLine]:
        return renditions.read(self._context.settings, path)

    def _ask(self, unit: ShardUnit, screens: dict[int, Shot], pictures: list[bytes], notes: list[str]) -> Settled:
        if self._guarded is None:
            raise UnitError(NO_GATE, kind=ErrorKind.PERMANENT)
        settings = self._context.settings
        vision = registry.vision(settings, *provider_and_model(self._context, self._queue, "vision"))
        sent = {screen: shot.id for screen, shot in screens.items()}
        prompt = prompts.vision_prompt(screens, unit.history)
        if unit.row.ask == Ask.REPAIR:
            reply = unit.row.reply or ""
            prompt = prompts.repair_prompt(
                prompt, reply, problem_of(reply, lambda text: vision_reply.read_index(text, sent))
            )
        subject = Subject(FLOW, str(unit.batch_id), str(unit.id), unit.claim_id)
        batch.outlast(self._context, WORK, [unit], vision.name)
        request = [prompts.VISION_SYSTEM, prompt, *(sha256(picture).hexdigest() for picture in pictures)]
        answer = self._tracer.call(
            subject,
            "vision",
            Operation.ANALYSE.value,
            vision.name,
            vision.model,
            request,
            lambda: vision.describe_all(
                pictures, "image/jpeg", prompt, system=prompts.VISION_SYSTEM, json_schema=INDEX_SCHEMA
            ),
        )
        digest = prompts.prompt_hash(prompts.VISION_SYSTEM, prompt)
        model = answer.model or vision.model
        used = UsedCall(
            Operation.ANALYSE, vision.name, model, digest, unit.attempts, Ask(unit.row.ask), list(sent.values())
        )
        return self._read(unit, answer, sent, notes, used)

    def _read(self, unit: ShardUnit, answer: Answer, sent: dict[int, int], notes: list[str], used: UsedCall) -> Settled:
        """Store a usable reply. Release the shard once for the repair of an unusable one, then use its valid parts."""
        text = clean(answer.text)
        try:
            return self._settle(unit, vision_reply.read_index(text, sent), notes, used)
        except BadReply as bad:
            log.warning("shard.reply_unusable", batch=unit.batch_id, shard=unit.id, problem=str(bad))
        if unit.row.ask == Ask.FIRST and not answer.truncated:
            return release(self._context, unit, text, self._tracer.trace)
        earlier = [unit.row.reply] if unit.row.reply else []
        try:
            index = vision_reply.best_index([*earlier, text], sent)
        except BadReply as bad:
            message = CUT if answer.truncated else f"the model's reply is unusable, even after a repair: {bad}"
            raise UnitError(message, kind=ErrorKind.PERMANENT, code="bad_reply") from None
        return self._settle(unit, index, notes, used)

    def _settle(self, unit: ShardUnit, index: Read[VlmIndex], notes: list[str], used: UsedCall) -> Settled:
        settled = settle(self._context, unit, index.value, used, [*notes, *index.notes], self._tracer.trace)
        log.info("shard.done", batch=unit.batch_id, shard=unit.id, segments=len(index.value.segments), model=used.model)
        return settled
