"""Operations on queues and breakers. They take effect in all workers at once."""

from datetime import datetime

from pipeline.operations.caller import Caller
from pipeline.operations.operation import acts, operation, reads
from pipeline.providers import queue_control, queue_views
from pipeline.providers import resume_at as resuming
from pipeline.storage.api_keys import Scope

list_queues, queue = reads(queue_views.queues), reads(queue_views.queue)
list_breakers, breaker = reads(queue_views.breakers), reads(queue_views.breaker)
breaker_history = reads(queue_views.breaker_history)
pause, resume = acts(queue_control.pause, Scope.ADMIN), acts(queue_control.resume, Scope.ADMIN)
open_breaker = acts(queue_control.open_breaker, Scope.ADMIN)
close_breaker = acts(queue_control.close_breaker, Scope.ADMIN)


@operation(Scope.READ)
def resume_at(caller: Caller) -> dict[str, datetime | None]:
    """Return when each closed queue reopens, from the hash `penstock:queues:resume_at`, which may be some seconds old;
    None: when it is resumed. Queues that are not closed are missing."""
    queue_views.require_online(caller.context)
    return resuming.resume_at(caller.context)
