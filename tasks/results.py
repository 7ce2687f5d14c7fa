"""The result backend, used for one thing: counting the parts of chords."""

from typing import Any

from celery.backends.redis import RedisBackend


class ChordCounter(RedisBackend):
    """Celery's Redis backend without listening for results.

    Publishing a chord subscribes its publisher to the result of every part, for good. Nobody here waits for a result:
    a worker that publishes chords all its life would gather subscriptions all its life.
    """

    def add_pending_result(self, result: Any, *_: Any, **__: Any) -> Any:
        return result

    def remove_pending_result(self, result: Any) -> Any:
        return result

    def on_task_call(self, producer: Any, task_id: str) -> None:
        """No subscription."""
