"""Calls through the gate. Each leaves a trace, even if it fails; paid answers stay on disk until they are recorded."""

import time
from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar
from uuid import uuid4

from sqlalchemy.exc import SQLAlchemyError

from pipeline.engine import kept_answers
from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.guarded_call import GateClosed, GuardedCall
from pipeline.engine.kept_answers import Subject
from pipeline.engine.tables import storable
from pipeline.engine.traces import message_of, preview
from pipeline.providers.protocols import Answer, Usage, Vectors, charged
from pipeline.storage.context import Context

Result = TypeVar("Result", Answer, Vectors)
NO_GATE = "the queue has no gate: its provider is not configured"


class Tracer:
    """Makes the call of one message and keeps its `trace` for `traces.record`; None until something was sent."""

    def __init__(self, context: Context, guarded: GuardedCall | None) -> None:
        self.guarded = guarded
        self._context = context
        self.trace: dict[str, Any] | None = None

    def call(
        self,
        subject: Subject,
        capability: str,
        operation: str,
        provider: str,
        model: str,
        inputs: Sequence[str],
        ask: Callable[[], Result],
    ) -> Result:
        """Make one call through the gate, and set `trace`, also after a `UnitError` of `ask`. Raises what `ask` raises,
        `GateClosed` (nothing was sent, so no trace), and `UnitError` without a gate.

        `inputs`: everything that the answer depends on. If `subject` has a claim, and a paid answer to the same request
        is kept, returns that without a call.
        """
        if self.guarded is None:
            raise UnitError(NO_GATE, kind=ErrorKind.PERMANENT)
        folder, digest = self._context.settings.answer_dir, kept_answers.digest_of(operation, provider, model, *inputs)
        if (
            subject.claim_id
            and (kept_answer := kept_answers.recall(folder, subject, digest)) is not None
            and kept_answer.content
        ):
            self.trace = kept_answer.trace | {"kept": kept_answer.path}
            return result_of(kept_answer.content)  # type: ignore[return-value]  # the same operation has the same result
        trace: dict[str, Any] = {
            "call_id": uuid4().hex,
            "flow": subject.flow,
            "scope_id": subject.scope_id,
            "unit": subject.unit,
            "capability": capability,
            "operation": operation,
            "provider": provider,
            "model": model,
            "status": "ok",
            "error": None,
            "input_tokens": 0,
            "output_tokens": 0,
            "cost": 0.0,
            "preview": "",
            "created_at": self._context.db.now(),
            "queue": self.guarded.gate.queue,
            "of": subject.of,
        }
        started = time.monotonic()
        try:
            result = self.guarded.call(ask, charged)
        except GateClosed:
            raise
        except UnitError as error:
            message, paid = message_of(error), getattr(error, "answer", None)
            tokens = self._tokens(paid) if paid else {}
            self.trace = trace | {"status": str(error.kind), "error": message} | tokens | _took(started)
            raise
        usage: Usage = result.usage
        shown = f"{len(result.vectors)} vectors" if isinstance(result, Vectors) else preview(storable(result.text))
        tokens = self._tokens(result)
        named = {"model": (result.model or model)[:120], "preview": shown, "error": usage.note or None}
        self.trace = trace | tokens | named | _took(started)
        answer = kept_form(result) if subject.claim_id else None
        self.trace["kept"] = kept_answers.keep(folder, subject, digest, self.trace, answer)
        return result

    def _tokens(self, paid: Answer | Vectors) -> dict[str, Any]:
        assert self.guarded is not None
        model, tokens_in, tokens_out = charged(paid)
        cost = self.guarded.cost_of(model, tokens_in, tokens_out)
        return {"input_tokens": tokens_in, "output_tokens": tokens_out, "cost": cost}

    def trace_of(self, error: Exception) -> dict[str, Any] | None:
        """Return the trace to record with a unit's error; None if the database failed after a good answer.

        In that case the answer stays on disk, and the unit's next attempt uses it.
        """
        return None if isinstance(error, SQLAlchemyError) else self.trace


def in_turn(call: Callable[[], Result], patience_s: float) -> Result:
    """Make a call, and wait while its gate is full or closed. Raises `GateClosed` as soon as the next wait would exceed
    `patience_s` seconds in all."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return call()
        except GateClosed as closed:
            wait_s = closed.retry_after_s or 1.0
            if time.monotonic() + wait_s > deadline:
                raise
            time.sleep(wait_s)


def kept_form(result: Answer | Vectors) -> dict[str, Any]:
    """Return a result as a dict, ready for JSON, for `result_of`."""
    if isinstance(result, Answer):
        return asdict(result)
    rows = [b64encode(array("d", values).tobytes()).decode() for values in result.vectors]
    return asdict(replace(result, vectors=[])) | {"vectors": rows}


def result_of(content: Mapping[str, Any]) -> Answer | Vectors:
    """Restore the result that `kept_form` wrote."""
    fields = {**content, "usage": Usage(**content["usage"])}
    if "vectors" not in content:
        return Answer(**fields)
    return Vectors(**fields | {"vectors": [list(array("d", b64decode(row))) for row in content["vectors"]]})


def _took(started: float) -> dict[str, int]:
    return {"latency_ms": int((time.monotonic() - started) * 1000)}
