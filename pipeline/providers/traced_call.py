"""Calls through the gate, each with a trace, however it ends."""

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.engine.guarded_call import GateClosed, GuardedCall
from pipeline.engine.tables import storable
from pipeline.engine.traces import message_of, preview
from pipeline.providers.protocols import Answer, Usage, Vectors, charged

Result = TypeVar("Result", Answer, Vectors)
NO_GATE = "the queue has no gate: its provider is not configured"


class Tracer:
    """Makes the call of one message and keeps its `trace` for `traces.record`; None as long as nothing was sent."""

    def __init__(self, guarded: GuardedCall | None, now: Callable[[], datetime]) -> None:
        """`now`: the database's time."""
        self.guarded = guarded
        self._now = now
        self.trace: dict[str, Any] | None = None

    def call(self, capability: str, operation: str, provider: str, model: str, ask: Callable[[], Result]) -> Result:
        """One call through the gate. Raises what `ask` raises, and `GateClosed` (without a trace: nothing was sent)."""
        if self.guarded is None:
            raise UnitError(NO_GATE, kind=ErrorKind.PERMANENT)
        trace: dict[str, Any] = {
            "capability": capability, "operation": operation, "provider": provider, "model": model, "status": "ok",
            "error": None, "input_tokens": 0, "output_tokens": 0, "cost": 0.0, "preview": "",
            "created_at": self._now(), "queue": self.guarded.gate.queue,
        }  # fmt: skip
        begun = time.monotonic()
        try:
            result = self.guarded.call(ask, charged)
        except GateClosed:
            raise
        except UnitError as error:
            said = message_of(error)
            self.trace = trace | {"status": str(error.kind), "error": said} | _took(begun)
            raise
        usage: Usage = result.usage
        said = f"{len(result.vectors)} vectors" if isinstance(result, Vectors) else preview(storable(result.text))
        tokens: dict[str, Any] = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
        tokens["cost"] = self.guarded.cost_of(result.model, usage.input_tokens, usage.output_tokens)
        named = {"model": (result.model or model)[:120], "preview": said, "error": usage.note or None}
        self.trace = trace | tokens | named | _took(begun)
        return result


def _took(begun: float) -> dict[str, int]:
    return {"latency_ms": int((time.monotonic() - begun) * 1000)}
