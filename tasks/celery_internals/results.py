"""The result backend, used for one thing: counting the parts of chords."""

from copy import copy
from typing import Any

from celery.backends.redis import RedisBackend, SentinelBackend

from pipeline.engine.private_socket import PrivateSocket
from pipeline.settings import get_settings


class _CountsLanes:
    """A Redis backend that counts a lane of many hops as one part and does not listen for results.

    Publishing a chord subscribes its publisher to the result of every part, for good. Nobody here waits for a result:
    a worker that publishes chords all its life would gather subscriptions all its life.
    """

    def on_chord_part_return(self, request: Any, state: Any, result: Any, propagate: Any = None, **kwargs: Any) -> Any:
        """Count a part by its place in the chord, not by its task's id, which each hop of a lane has of its own.

        If one of its messages was delivered twice, a lane ends twice: it still counts once.
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
        """No subscription."""


class ChordCounter(_CountsLanes, RedisBackend):
    """Over one server."""


class SentinelChordCounter(_CountsLanes, SentinelBackend):
    """Over the server that sentinels name."""
