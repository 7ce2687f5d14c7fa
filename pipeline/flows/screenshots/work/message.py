"""What the work of every message that may ask a provider shares: a guarded call, left when the work ends."""

from contextlib import suppress
from typing import Self

from redis import RedisError

from pipeline.engine.claims import Owner
from pipeline.engine.guarded_call import GuardedCall
from pipeline.providers.traced_call import Tracer
from pipeline.storage.context import Context


class MessageWork:
    """One message's work. A context manager: leaving it gives the gate's slot back."""

    def __init__(self, context: Context, queue: str, owner: Owner, guarded: GuardedCall | None) -> None:
        self._context = context
        self._queue = queue
        self._owner = owner
        self._guarded = guarded
        self._tracer = Tracer(guarded)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._guarded is not None:
            with suppress(RedisError):
                self._guarded.leave()
