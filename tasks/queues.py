"""The Python API of queues and breakers: pause, resume, open and close them; all workers follow at once.

>>> from tasks import queues
>>> queues.pause("vision.openai", seconds=600, reason="maintenance")
>>> queues.change_setting("provider.openai.limits", "10/s, 500/min")
"""

from pipeline.engine.breaker import BreakerState
from pipeline.engine.errors import UserError
from pipeline.engine.live_settings import Value
from pipeline.engine.logs import configure_as_library
from pipeline.operations.live_settings import change_setting, list_settings, reset_setting, setting
from pipeline.operations.queues import (
    breaker,
    breaker_history,
    close_breaker,
    list_breakers,
    list_queues,
    open_breaker,
    pause,
    queue,
    resume,
    resume_at,
)
from pipeline.providers.breaker_record import BreakerChange
from pipeline.providers.queue_views import LimitView, QueueView

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
