"""The steps of a batch: ask for metadata, mend a reply, embed, save. Source 002, section 2.E.

One message, one call: each step that is paid for stores its result before the next one begins.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
from redis import RedisError

from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, PenstockError, UnitError
from pipeline.engine.guarded_call import GuardedCall
from pipeline.flows.music import vectors as spaces
from pipeline.flows.music.routes import writer_of
from pipeline.flows.music.rules.prompts import SYSTEM, SongFacts, prompt, repair_prompt, to_embed, vector_text
from pipeline.flows.music.rules.schemas import REPLY_SCHEMA, Analysis, dump, load, matched, read_reply, usable
from pipeline.flows.music.states import Mode, Step, step_after_metadata
from pipeline.flows.music.work import batch, result
from pipeline.flows.music.work.batch import BatchUnit, Settled, message_of
from pipeline.providers import registry
from pipeline.providers.protocols import Answer
from pipeline.providers.replies import BadReply, clean
from pipeline.providers.traced_call import NO_GATE, Tracer
from pipeline.storage import vectors
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
CUT = (
    "the reply stops at its token limit: raise the provider's MAX_TOKENS, or lower "
    "`penstock settings set queue_batch_size`"
)


class StepWork:
    """One message's work on a batch. Use as a context manager: leaving it gives the gate's slot back."""

    def __init__(self, context: Context, batch_id: int, owner: Owner, guarded: GuardedCall | None) -> None:
        self._context = context
        self._batch_id = batch_id
        self._owner = owner
        self._guarded = guarded
        self._queue = guarded.gate.queue if guarded is not None else ""
        self._tracer = Tracer(guarded)
        self.unit: BatchUnit | None = None

    def __enter__(self) -> "StepWork":
        return self

    def __exit__(self, *_: object) -> None:
        if self._guarded is not None:
            with suppress(RedisError):
                self._guarded.leave()

    def metadata(self) -> Settled:
        """Ask about the songs, or, where the reply to that was no use, ask for it to be mended."""
        return self._step((Step.METADATA, Step.REPAIR), self._metadata)

    def embed(self) -> Settled:
        """Make the vectors."""
        return self._step((Step.EMBED,), self._embed)

    def save(self) -> Settled:
        """Write what was found to the songs."""
        return self._step((Step.SAVE,), self._save)

    def _step(self, steps: tuple[Step, ...], work: Callable[[BatchUnit], Settled]) -> Settled:
        self.unit = batch.claim(self._context, self._batch_id, steps, self._owner)
        if self.unit is None:
            return Settled(held=False)
        try:
            settled = work(self.unit)
        except UnitError as error:
            settled = self._failed(self.unit, error)
        except PenstockError as error:
            settled = self._failed(self.unit, UnitError(str(error), kind=ErrorKind.PERMANENT))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            log.exception("music.unexpected_error", batch=self.unit.id)
            what = f"unexpected {type(error).__name__}: {message_of(error)}"
            settled = self._failed(self.unit, UnitError(what, kind=ErrorKind.PERMANENT))
        log.info("music.step", batch=self.unit.id, step=self.unit.step.value, held=settled.held, go_on=settled.go_on)
        return settled

    def _failed(self, unit: BatchUnit, error: UnitError, **values: Any) -> Settled:
        log.warning("music.step_failed", batch=unit.id, step=unit.step.value, kind=str(error.kind), error=str(error))
        return batch.failed(self._context, unit, error, self._tracer.trace, **values)

    def _metadata(self, unit: BatchUnit) -> Settled:
        kept = load(unit.row.analysis)
        wanted = [song for song in unit.songs if song.id not in kept]
        if not wanted:
            return self._described(unit, kept)
        if self._guarded is None:
            raise UnitError(NO_GATE, kind=ErrorKind.PERMANENT)
        settings = self._context.settings
        provider, model = writer_of(settings, self._queue)
        asked = registry.text(settings, provider, model)
        mending = unit.step is Step.REPAIR
        text = repair_prompt(wanted, unit.row.reply or "", unit.row.error or "") if mending else prompt(wanted)
        operation = "repair_metadata" if mending else "batch_metadata"
        answer = self._tracer.call(
            "text", operation, asked.name, asked.model,
            lambda: asked.complete(text, system=SYSTEM, json_schema=REPLY_SCHEMA),
        )  # fmt: skip
        return self._read(unit, kept, wanted, answer)

    def _read(self, unit: BatchUnit, kept: dict[int, Analysis], wanted: list[SongFacts], answer: Answer) -> Settled:
        """Keep every valid answer; what lacks one is asked for once more, if the reply was broken, or goes back."""
        problem = CUT if answer.truncated else ""
        try:
            analyses = read_reply(answer.text)
        except BadReply as bad:
            analyses, problem = usable(answer.text), problem or str(bad)
        found, ignored = matched(analyses, {song.server_id: song.id for song in wanted})
        told = {"ignored": unit.row.ignored + ignored, "analysis_model": answer.model[:120]}
        if not problem or len(found) == len(wanted):
            return self._described(unit, kept | found, reply=unit.row.reply, **told)
        log.warning("music.reply_unusable", batch=unit.id, problem=problem, usable=len(found))
        told["reply"] = _both(unit.row.reply, clean(answer.text))
        if unit.step is Step.METADATA and not answer.truncated:
            told["analysis"] = dump(found) if found else None
            return batch.step_done(self._context, unit, Step.REPAIR, self._tracer.trace, error=problem, **told)
        if kept or found:
            return self._described(unit, kept | found, **told)
        what = problem if answer.truncated else f"the model's reply is no use, also after a repair: {problem}"
        error = UnitError(what, kind=ErrorKind.PERMANENT, code="truncated" if answer.truncated else "bad_reply")
        return self._failed(unit, error, **told)

    def _described(self, unit: BatchUnit, found: dict[int, Analysis], **values: Any) -> Settled:
        """Store the metadata. Songs of the batch that are not in `found` go back when it is saved."""
        texts = any(vector_text(found[song.id], song) for song in unit.songs if song.id in found)
        after = step_after_metadata(unit.mode, texts=texts)
        return batch.step_done(self._context, unit, after, self._tracer.trace, analysis=dump(found), **values)

    def _embed(self, unit: BatchUnit) -> Settled:
        ids, texts = to_embed(self._texts(unit))
        if not texts:
            return batch.step_done(self._context, unit, Step.SAVE, None)
        made_by = spaces.embeddings(self._context.settings)
        if spaces.is_lexical(self._context.settings):
            made = made_by.embed(texts)
        else:
            made = self._tracer.call(
                "embeddings", "embed_songs", made_by.name, made_by.model, lambda: made_by.embed(texts)
            )  # fmt: skip
        if len(made.vectors) != len(ids):
            raise UnitError(f"{len(made.vectors)} vectors came for {len(ids)} texts", code="bad_reply")
        return batch.step_done(
            self._context, unit, Step.SAVE, self._tracer.trace, vectors=vectors.pack(made.vectors),
            vector_ids=json.dumps(ids), vector_model=spaces.space_of(self._context.settings),
        )  # fmt: skip

    def _texts(self, unit: BatchUnit) -> dict[int, str]:
        """What is to be embedded, by song id."""
        if unit.mode is Mode.EMBEDDING:
            with self._context.db.read() as session:
                return result.texts(session, unit.id)
        found = load(unit.row.analysis)
        return {song.id: vector_text(found[song.id], song) for song in unit.songs if song.id in found}

    def _save(self, unit: BatchUnit) -> Settled:
        held = self._context.db.run(lambda session: result.save(session, unit.id, unit.run_id, unit.claim))
        return Settled(held=held)


def _both(earlier: str | None, reply: str) -> str:
    """What is kept of replies that were no use: both, if there was a repair."""
    return reply if earlier in {None, reply} else f"{earlier}\n\n--- after a repair:\n\n{reply}"
