"""What one message does for a batch: take its next shard, have its frames looked at, store what was seen."""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
from PIL import Image

from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.guarded_call import GuardedCall
from pipeline.flows.screenshots.frames import fingerprint, retention
from pipeline.flows.screenshots.routes import CPU, looker_of
from pipeline.flows.screenshots.rules import heuristics, prompts, vision_index
from pipeline.flows.screenshots.rules.batches import HistoryPack, Shot, shot_of
from pipeline.flows.screenshots.rules.heuristics import index_by_rules
from pipeline.flows.screenshots.rules.provenance import Operation
from pipeline.flows.screenshots.rules.schemas import INDEX_SCHEMA, VlmIndex
from pipeline.flows.screenshots.states import Ask, Origin
from pipeline.flows.screenshots.work import shard
from pipeline.flows.screenshots.work.batch import UsedCall
from pipeline.flows.screenshots.work.message import MessageWork
from pipeline.flows.screenshots.work.outcome import RELEASED, as_unit_error
from pipeline.flows.screenshots.work.shard import ShardUnit
from pipeline.providers import registry
from pipeline.providers.protocols import Answer
from pipeline.providers.replies import BadReply, Read, clean
from pipeline.providers.traced_call import NO_GATE
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
Prepared = TypeVar("Prepared")
CUT = "the reply stops at its token limit: raise the provider's MAX_TOKENS, or lower PENSTOCK_SCREENSHOTS__SHARD_SIZE"


@dataclass(frozen=True)
class Looked:
    """What a message did. `again`: its shard is due once more, so it should take its place in the queue again."""

    worked: bool = False
    again: bool = False


class ShardWork(MessageWork):
    """One message's work on a batch: its next shard."""

    def __init__(
        self, context: Context, batch_id: int, queue: str, owner: Owner, guarded: GuardedCall | None,
        timed_out: type[Exception] = TimeoutError,
    ) -> None:  # fmt: skip
        super().__init__(context, queue, owner, guarded)
        self._batch_id = batch_id
        self._timed_out = timed_out

    def run(self) -> Looked:
        """Work on the next shard that is due; nothing if there is none. Never raises for what is wrong with a shard."""
        unit = shard.claim(self._context, self._batch_id, self._owner)
        if unit is None:
            return Looked()
        try:
            return self._look(unit)
        except self._timed_out:
            return self._failed(
                unit, UnitError("recognising the text of these screenshots took too long", code="timeout")
            )
        except Exception as error:  # noqa: BLE001  # whatever it is, the row says it
            return self._failed(unit, as_unit_error(error))

    def _failed(self, unit: ShardUnit, error: UnitError) -> Looked:
        log.warning("shard.failed", batch=unit.batch_id, shard=unit.id, kind=str(error.kind), error=str(error))
        failed = shard.failed(self._context, unit, error, self._tracer.trace)
        # Refused at the gate: it waits there, like every message.
        return Looked(worked=True, again=failed.event is not None and error.kind in RELEASED)

    def _look(self, unit: ShardUnit) -> Looked:
        if self._queue == CPU:
            texts = self._prepared(unit, self._recognised)
            screens, notes = _shown(unit, texts)
            return self._by_rules(unit, screens, texts, notes) if texts else self._nothing(unit, notes)
        pictures = self._prepared(unit, fingerprint.as_jpeg)
        screens, notes = _shown(unit, pictures)
        in_order = [picture for _, picture in sorted(pictures.items())]
        return self._ask(unit, screens, in_order, notes) if pictures else self._nothing(unit, notes)

    def _nothing(self, unit: ShardUnit, notes: list[str]) -> Looked:
        """All its frames are gone: there is nothing to see."""
        return self._done(unit, Read(VlmIndex(segments=[]), tuple(notes)), self._used("", "", "", unit, []))

    def _prepared(self, unit: ShardUnit, prepare: Callable[[Image.Image], Prepared]) -> dict[int, Prepared]:
        """What is made of each frame's picture, by screen id. Frames without one are given up, the others go on."""
        found: dict[int, Prepared] = {}
        for screen, shot in unit.shots.items():
            path = retention.image_of(self._context, shot)
            if path is None:
                continue
            try:
                image = fingerprint.load_image(path)
            except UnitError as error:
                if error.code == "unreadable":
                    raise UnitError(str(error)) from error  # of the system, not of the picture: it may pass
                retention.give_up(self._context, shot, str(error))
                continue
            found[screen] = prepare(image)
        return found

    def _recognised(self, image: Image.Image) -> str:
        from pipeline.reading import ocr  # noqa: PLC0415  # a second, which looking by a provider never needs

        lines = ocr.recognise(image, ocr.threads_for(self._context.settings.documents.converter_count))
        return clean("\n".join(line.text for line in lines))

    def _by_rules(self, unit: ShardUnit, screens: dict[int, Shot], read: dict[int, str], notes: list[str]) -> Looked:
        """Window titles, recognised text and rules, where nobody else looks."""
        texts = {screens[screen].id: text for screen, text in read.items()}
        index = index_by_rules(screens, texts, HistoryPack.model_validate_json(unit.history_pack))
        used = UsedCall(
            Operation.RULES, "local", Origin.RULES.value, "", unit.attempts, Ask.FIRST, sorted(texts)
        )  # fmt: skip
        return self._done(unit, Read(index, (*notes, heuristics.NOTE)), used)

    def _ask(self, unit: ShardUnit, screens: dict[int, Shot], pictures: list[bytes], notes: list[str]) -> Looked:
        if self._guarded is None:
            raise UnitError(NO_GATE, kind=ErrorKind.PERMANENT)
        settings = self._context.settings
        provider, model = looker_of(settings, self._queue)
        looker = registry.vision(settings, provider, model)
        prompt = prompts.vision_prompt(screens, HistoryPack.model_validate_json(unit.history_pack))
        if unit.row.ask == Ask.REPAIR:
            problem = problem_of(unit.row.reply or "", screens)
            prompt = prompts.repair_prompt(prompt, unit.row.reply or "", problem)
        answer = self._tracer.call(
            "vision", Operation.ANALYSE.value, looker.name, looker.model,
            lambda: looker.look(
                pictures, "image/jpeg", prompt, system=prompts.VISION_SYSTEM, json_schema=INDEX_SCHEMA
            ),
        )  # fmt: skip
        used = self._used(
            looker.name, answer.model or looker.model, prompts.prompt_hash(prompts.VISION_SYSTEM, prompt), unit,
            [shot.id for shot in screens.values()],
        )  # fmt: skip
        return self._read(unit, answer, {screen: shot.id for screen, shot in screens.items()}, notes, used)

    def _read(self, unit: ShardUnit, answer: Answer, sent: dict[int, int], notes: list[str], used: UsedCall) -> Looked:
        """Store what the reply says; where it is no use, have it mended once, then take the parts that are valid."""
        text = clean(answer.text)
        try:
            return self._done(unit, _with(notes, vision_index.read_index(text, sent)), used)
        except BadReply as bad:
            problem = bad
        log.warning("shard.reply_unusable", batch=unit.batch_id, shard=unit.id, problem=str(problem))
        if unit.row.ask == Ask.FIRST and not answer.truncated:
            kept = shard.to_repair(self._context, unit, text, self._tracer.trace)
            return Looked(worked=True, again=kept)
        earlier = [unit.row.reply] if unit.row.reply else []
        try:
            found = vision_index.best_index([*earlier, text], sent)
        except BadReply as bad:
            what = CUT if answer.truncated else f"the model's reply is no use, also after a repair: {bad}"
            raise UnitError(what, kind=ErrorKind.PERMANENT, code="bad_reply") from None
        return self._done(unit, _with(notes, found), used)

    def _done(self, unit: ShardUnit, found: Read[VlmIndex], used: UsedCall) -> Looked:
        shard.done(self._context, unit, found.value, used, found.notes, self._tracer.trace)
        log.info("shard.done", batch=unit.batch_id, shard=unit.id, segments=len(found.value.segments), model=used.model)
        return Looked(worked=True)

    def _used(self, provider: str, model: str, digest: str, unit: ShardUnit, shot_ids: list[int]) -> UsedCall:
        return UsedCall(Operation.ANALYSE, provider, model, digest, unit.attempts, Ask(unit.row.ask), shot_ids)


def _shown(unit: ShardUnit, seen: Collection[int]) -> tuple[dict[int, Shot], list[str]]:
    """(frames that can be looked at, by screen id; what is to be said of the others)."""
    gone = len(json.loads(unit.row.shot_ids)) - len(seen)
    notes = [f"deleted or damaged before they were analysed: {gone} of {gone + len(seen)} screenshots"] if gone else []
    return {screen: shot_of(unit.shots[screen]) for screen in seen}, notes


def problem_of(reply: str, screens: dict[int, Any]) -> str:
    """What was wrong with a reply that is to be mended."""
    try:
        vision_index.read_index(reply, {screen: shot.id for screen, shot in screens.items()})
    except BadReply as bad:
        return str(bad)
    return "it was cut off"


def _with(notes: list[str], found: Read[VlmIndex]) -> Read[VlmIndex]:
    return Read(found.value, (*notes, *found.notes))
