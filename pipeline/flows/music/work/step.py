"""The steps of a batch: metadata, repair of a reply, embedding, saving. Rules: docs/sources/music.md#steps.

Each message makes one call, and each paid step stores its result before the next step starts.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
from redis import RedisError
from sqlalchemy import select

from pipeline.engine.claims import Owner
from pipeline.engine.errors import ErrorKind, PenstockError, UnitError
from pipeline.engine.guarded_call import GuardedCall
from pipeline.engine.kept_answers import Subject
from pipeline.engine.settled import Settled
from pipeline.engine.traces import message_of
from pipeline.flows.music.models import SONGS
from pipeline.flows.music.routes import metadata_provider
from pipeline.flows.music.rules.findings import to_embed, vector_text
from pipeline.flows.music.rules.prompts import SYSTEM, SongFacts, prompt, repair_prompt
from pipeline.flows.music.rules.schemas import REPLY_SCHEMA, Analysis, dump, load, matched, read_reply, usable
from pipeline.flows.music.states import Mode, Step, step_after_metadata
from pipeline.flows.music.vectors import embeddings, is_lexical, vector_space
from pipeline.flows.music.work import batch
from pipeline.flows.music.work.batch import BatchUnit
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
    """One message's work on a batch. Leaving the context gives the gate's slot back."""

    def __init__(self, context: Context, batch_id: int, owner: Owner, guarded: GuardedCall | None) -> None:
        self._context = context
        self._batch_id = batch_id
        self._owner = owner
        self._guarded = guarded
        self._tracer = Tracer(context, guarded)

    def __enter__(self) -> "StepWork":
        return self

    def __exit__(self, *_: object) -> None:
        if self._guarded is not None:
            with suppress(RedisError):
                self._guarded.leave()

    def metadata(self) -> Settled:
        """Call for the songs' metadata, or for the repair of an unusable reply, and store it in the batch for `save`.

        Settles errors of the call.
        """
        return self._step((Step.METADATA, Step.REPAIR), self._metadata)

    def embed(self) -> Settled:
        """Make the vectors of the batch's songs and store them in the batch for `save`. Settles errors of the call."""
        return self._step((Step.EMBED,), self._embed)

    def save(self) -> Settled:
        """Write the batch's results to its songs, and complete both."""
        return self._step((Step.SAVE,), lambda unit: batch.settle(self._context, unit, None))

    def _step(self, steps: tuple[Step, ...], work: Callable[[BatchUnit], Settled]) -> Settled:
        unit = batch.claim(self._context, self._batch_id, steps, self._owner)
        if unit is None:
            return Settled()
        try:
            settled = work(unit)
        except UnitError as error:
            settled = self._fail(unit, error)
        except PenstockError as error:
            settled = self._fail(unit, UnitError(str(error), kind=ErrorKind.PERMANENT))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            log.exception("music.unexpected_error", batch=unit.id)
            message = f"unexpected {type(error).__name__}: {message_of(error)}"
            settled = self._fail(unit, UnitError(message, kind=ErrorKind.PERMANENT))
        held = settled.status is not None
        log.info("music.step", batch=unit.id, step=unit.step.value, held=held, go_on=settled.requeue)
        return settled

    def _fail(self, unit: BatchUnit, error: UnitError, **values: Any) -> Settled:
        log.warning("music.step_failed", batch=unit.id, step=unit.step.value, kind=str(error.kind), error=str(error))
        return batch.fail(self._context, unit, error, self._tracer.trace, **values)

    def _settle(self, unit: BatchUnit, after: Step, **values: Any) -> Settled:
        return batch.settle(self._context, unit, after, self._tracer.trace, **values)

    def _metadata(self, unit: BatchUnit) -> Settled:
        analyses = load(unit.row.analysis)
        missing = [song for song in unit.songs if song.id not in analyses]
        if not missing:
            return self._described(unit, analyses)
        if self._guarded is None:
            raise UnitError(NO_GATE, kind=ErrorKind.PERMANENT)
        settings = self._context.settings
        provider, model = metadata_provider(self._context, self._guarded.gate.queue)
        writer = registry.text(settings, provider, model)
        repairing = unit.step is Step.REPAIR
        text = repair_prompt(missing, unit.row.reply or "", unit.row.error or "") if repairing else prompt(missing)
        answer = self._tracer.call(
            _subject(unit),
            "text",
            "repair_metadata" if repairing else "batch_metadata",
            writer.name,
            writer.model,
            [SYSTEM, text],
            lambda: writer.complete(text, system=SYSTEM, json_schema=REPLY_SCHEMA),
        )
        return self._read(unit, analyses, missing, answer)

    def _read(self, unit: BatchUnit, kept: dict[int, Analysis], missing: list[SongFacts], answer: Answer) -> Settled:
        """Keep every valid answer. If the reply was broken, a repair asks once for the other songs; none follows a
        truncated reply. Then songs without an answer become pending again when the batch is saved; if the reply is bad
        and no song has an answer, the batch fails."""
        problem = CUT if answer.truncated else ""
        try:
            analyses = read_reply(answer.text)
        except BadReply as bad:
            analyses, problem = usable(answer.text), problem or str(bad)
        answers, ignored = matched(analyses, {song.server_id: song.id for song in missing})
        values = {"ignored": unit.row.ignored + ignored, "analysis_model": answer.model[:120]}
        if not problem or len(answers) == len(missing):
            return self._described(unit, kept | answers, reply=unit.row.reply, **values)
        log.warning("music.reply_unusable", batch=unit.id, problem=problem, usable=len(answers))
        earlier, reply = unit.row.reply, clean(answer.text)
        values["reply"] = reply if earlier in {None, reply} else f"{earlier}\n\n--- after a repair:\n\n{reply}"
        if unit.step is Step.METADATA and not answer.truncated:
            return self._settle(unit, Step.REPAIR, error=problem, analysis=dump(answers) if answers else None, **values)
        if kept or answers:
            return self._described(unit, kept | answers, **values)
        message = problem if answer.truncated else f"the model's reply is unusable, even after a repair: {problem}"
        error = UnitError(message, kind=ErrorKind.PERMANENT, code="truncated" if answer.truncated else "bad_reply")
        return self._fail(unit, error, **values)

    def _described(self, unit: BatchUnit, analyses: dict[int, Analysis], **values: Any) -> Settled:
        """Store the metadata. Songs of the batch without an analysis become pending again when the batch is saved."""
        texts = any(vector_text(analyses[song.id], song) for song in unit.songs if song.id in analyses)
        return self._settle(unit, step_after_metadata(unit.mode, texts=texts), analysis=dump(analyses), **values)

    def _embed(self, unit: BatchUnit) -> Settled:
        ids, texts = to_embed(self._texts(unit))
        if not texts:
            return self._settle(unit, Step.SAVE)
        settings = self._context.settings
        maker = embeddings(settings)
        reply = (
            maker.embed(texts)
            if is_lexical(settings)
            else self._tracer.call(
                _subject(unit),
                "embeddings",
                "embed_songs",
                maker.name,
                maker.model,
                texts,
                lambda: maker.embed(texts),
            )
        )
        if len(reply.vectors) != len(ids):
            raise UnitError(f"{len(reply.vectors)} vectors came for {len(ids)} texts", code="bad_reply")
        return self._settle(
            unit,
            Step.SAVE,
            vectors=vectors.pack(reply.vectors),
            vector_ids=json.dumps(ids),
            vector_model=vector_space(settings),
        )

    def _texts(self, unit: BatchUnit) -> dict[int, str]:
        """Return the texts to embed, by song id."""
        if unit.mode is Mode.EMBEDDING:
            query = select(SONGS.c.id, SONGS.c.vector_text).where(SONGS.c.batch_id == unit.id).order_by(SONGS.c.id)
            with self._context.db.read() as session:
                return dict(session.execute(query).all())
        analyses = load(unit.row.analysis)
        return {song.id: vector_text(analyses[song.id], song) for song in unit.songs if song.id in analyses}


def _subject(unit: BatchUnit) -> Subject:
    return Subject("music", unit.run_id, str(unit.id), unit.claim_id)
