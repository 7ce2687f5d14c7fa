"""What all messages that may ask a provider have in common: a way through the gate, which ends when they do."""

from contextlib import suppress
from typing import Self

from redis import RedisError

from pipeline.engine.claims import Owner
from pipeline.engine.guarded_call import Passage
from pipeline.providers.traced_call import Tracer
from pipeline.storage.context import Context


class Errand:
    """One message's work. Use as a context manager: leaving it gives the gate's slot back."""

    def __init__(self, context: Context, queue: str, owner: Owner, passage: Passage | None) -> None:
        self._context = context
        self._queue = queue
        self._owner = owner
        self._passage = passage
        self._tracer = Tracer(passage)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._passage is not None:
            with suppress(RedisError):
                self._passage.leave()
