"""Shared by messages with calls: the gate's slot, the provider, and the record of used calls."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Self

from redis import RedisError
from sqlalchemy import insert

from pipeline.engine.claims import Owner
from pipeline.engine.guarded_call import GuardedCall
from pipeline.engine.transaction import Tx
from pipeline.flows.screenshots.graph.models import CALLS
from pipeline.flows.screenshots.rules.provenance import Operation
from pipeline.flows.screenshots.states import Ask
from pipeline.providers.replies import BadReply
from pipeline.providers.traced_call import Tracer
from pipeline.storage.context import Context


class Message:
    """The work of one message. Use it as a context manager, which gives the gate's slot back."""

    def __init__(self, context: Context, queue: str, owner: Owner, guarded: GuardedCall | None) -> None:
        self._context = context
        self._queue = queue
        self._owner = owner
        self._guarded = guarded
        self._tracer = Tracer(context, guarded)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._guarded is not None:
            with suppress(RedisError):
                self._guarded.leave()


def provider_and_model(context: Context, queue: str, capability: Literal["vision", "text"]) -> tuple[str, str]:
    """Return the (provider, model) that this queue's messages call; the model is empty for a fallback, which uses its
    own."""
    own = context.settings.screenshots
    named = {"vision": (own.vision_provider, own.vision_model), "text": (own.text_provider, own.text_model)}[capability]
    provider = context.gates.queues[queue].provider
    return provider, named[1] if provider == named[0] else ""


def problem_of(reply: str, read: Callable[[str], object]) -> str:
    """Return what is wrong with an unusable reply, for the prompt of its repair: the message of the `BadReply` that
    `read` raises, else that it was cut off."""
    try:
        read(reply)
    except BadReply as bad:
        return str(bad)
    return "it was cut off"


@dataclass(frozen=True)
class UsedCall:
    """A call whose result is stored, for the provenance of nodes."""

    operation: Operation
    provider: str
    model: str
    prompt_hash: str
    attempt: int
    ask: Ask
    shot_ids: Sequence[int]

    def record(self, tx: Tx, *, batch_id: int | None = None, node_id: int | None = None) -> None:
        """Store this call for provenance: of the nodes of a batch, or of the node `node_id`, into which it merged
        another."""
        row = {
            "batch_id": batch_id,
            "node_id": node_id,
            "operation": self.operation,
            "provider": self.provider,
            "model": self.model[:120],
            "prompt_hash": self.prompt_hash,
            "attempt": self.attempt,
            "ask": self.ask,
            "shot_ids": json.dumps(list(self.shot_ids)),
            "created_at": tx.now,
        }
        tx.execute(insert(CALLS).values(**row))
