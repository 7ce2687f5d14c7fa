"""The result backend, whose only use is to count the parts of chords."""

from copy import copy
from typing import Any

from celery.backends.redis import RedisBackend, SentinelBackend

from pipeline.engine.private_socket import PrivateSocket
from pipeline.settings import get_settings


class _CountsLanes:
    """A Redis backend that counts a lane of many hops as one part, and never subscribes to results.

    Celery subscribes the publisher of a chord to the result of every part, and never unsubscribes. No code here waits
    for a result, so the subscriptions of a worker would only pile up.
    """

    def on_chord_part_return(self, request: Any, state: Any, result: Any, propagate: Any = None, **kwargs: Any) -> Any:
        """Count a part by its index in the chord, because each hop of a lane has its own task id.

        After a double delivery, a lane ends twice but counts once.
        """
        if request.group and request.group_index is not None:
            request = copy(request)
            request.id = f"{request.group}:{request.group_index}"
        return super().on_chord_part_return(  # type: ignore[misc]
            request, state, result, propagate, **kwargs
        )

    def _params_from_url(self, url: str, defaults: Any) -> Any:
        options = super()._params_from_url(url, defaults)  # type: ignore[misc]
        if "path" in options and get_settings().redis.private:
            options["connection_class"] = PrivateSocket
        return options

    def add_pending_result(self, result: Any, *_: Any, **__: Any) -> Any:
        return result

    def remove_pending_result(self, result: Any) -> Any:
        return result

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """Do not subscribe."""


class ChordCounter(_CountsLanes, RedisBackend):
    """The counter on one server."""


class SentinelChordCounter(_CountsLanes, SentinelBackend):
    """The counter on the server that sentinels name."""
