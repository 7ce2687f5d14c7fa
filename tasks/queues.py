"""Queues and breakers, for Python: paused, resumed, opened and closed while everything runs; all workers know at once.

>>> from tasks import queues
>>> queues.pause("vision.openai", seconds=600, reason="maintenance")
>>> queues.change_setting("provider.openai.limits", "10/s, 500/min")
"""

from datetime import datetime
from typing import Any

from pipeline.engine.breaker import BreakerState
from pipeline.engine.errors import UserError
from pipeline.engine.live_settings import Value
from pipeline.engine.logs import configure_as_library
from pipeline.providers import gates, queue_control, queue_views
from pipeline.providers import resume_at as resuming
from pipeline.providers.breaker_record import BreakerChange
from pipeline.providers.queue_views import LimitView, QueueView
from tasks import watchdog  # noqa: F401  # tells the workers
from tasks.context import get_context

__all__ = [
    "BreakerChange",
    "BreakerState",
    "LimitView",
    "QueueView",
    "UserError",
    "Value",
    "breaker",
    "breaker_history",
    "change_setting",
    "close_breaker",
    "list_breakers",
    "list_queues",
    "list_settings",
    "open_breaker",
    "pause",
    "queue",
    "reset_setting",
    "resume",
    "resume_at",
    "setting",
]

configure_as_library()


def list_queues() -> list[QueueView]:
    """All queues: what waits, limits and their use, why a gate is closed. Raises `UserError` where Redis is down."""
    return queue_views.queues(get_context())


def queue(name: str) -> QueueView:
    """A queue with a gate. Raises `UserError` for an unknown one."""
    return queue_views.queue(get_context(), name)


def resume_at() -> dict[str, datetime | None]:
    """When each closed queue flows again, as the hash `penstock:queues:resume_at` says; None: when it is resumed."""
    context = get_context()
    queue_views.require_online(context)
    return resuming.resume_at(context)


def list_breakers() -> list[BreakerState]:
    """All breakers. Raises `UserError` where Redis is down."""
    return queue_views.breakers(get_context())


def breaker(name: str) -> BreakerState:
    """The breaker `provider:capability`. Raises `UserError` for an unknown one."""
    return queue_views.breaker(get_context(), name)


def breaker_history(name: str) -> list[BreakerChange]:
    """When the breaker opened and closed lately, and why; the newest first. Raises `UserError` for an unknown one."""
    return queue_views.breaker_history(get_context(), name)


def list_settings() -> list[Value]:
    """Every live setting as it stands."""
    return gates.live_settings(get_context())


def setting(key: str) -> Value:
    """One live setting. Raises `UserError` for an unknown key."""
    return gates.live_setting(get_context(), key)


def pause(queue: str, seconds: float | None = None, reason: str = "") -> None:
    """Let nothing more through for `seconds`, or until `resume`. Raises `UserError` for an unknown queue."""
    queue_control.pause(get_context(), queue, seconds, reason)


def resume(queue: str) -> None:
    """End an operator's pause, never a breaker's. Raises `UserError` for an unknown queue."""
    queue_control.resume(get_context(), queue)


def open_breaker(name: str, seconds: float = 0.0, reason: str = "by hand") -> float:
    """Open `provider:capability` for `seconds`, 0 for its cool-down; the seconds that are left. Raises `UserError`."""
    return queue_control.open_breaker(get_context(), name, seconds, reason)


def close_breaker(name: str) -> None:
    """Close a breaker, and end its timer. Raises `UserError` for an unknown one."""
    queue_control.close_breaker(get_context(), name)


def change_setting(key: str, text: str, *, reason: str = "", by: str = "") -> Any:
    """Set a live setting; the value in force. `reason` and `by` are shown beside it. Raises `UserError`."""
    return queue_control.change_setting(get_context(), key, text, reason=reason, by=by)


def reset_setting(key: str, *, reason: str = "", by: str = "") -> Any:
    """Return a live setting to its default, and give that. Raises `UserError`."""
    return queue_control.reset_setting(get_context(), key, reason=reason, by=by)
