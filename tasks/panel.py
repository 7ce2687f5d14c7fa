"""Control commands of every worker, such as `celery -A tasks inspect gates`."""

from typing import Any

from celery.concurrency.thread import TaskPool
from celery.worker.control import control_command, inspect_command, nok, ok, pool_grow, pool_shrink

from tasks.gates import LOOK_AT_GATES


@inspect_command(name="active_queues")
def _active_queues(state: Any, **_: Any) -> Any:
    """The queues that a worker consumes, including queues that limits hold up for a moment."""
    return [dict(queue.as_dict(recurse=True)) for queue in state.consumer.consumed()]


@inspect_command(name="gates")
def _gates(state: Any, **_: Any) -> Any:
    """In words, by queue: why a worker takes no messages from some of its queues."""
    return state.consumer.waiting_reasons()


@control_command(name="pool_grow", args=[("n", int)], signature="[N=1]")
def _pool_grow(state: Any, n: int = 1, **more: Any) -> Any:
    """Add processes or threads to a worker's pool. Celery itself cannot add threads."""
    pool = state.consumer.pool
    if not isinstance(pool, TaskPool):
        return pool_grow(state, n, **more)
    pool.executor._max_workers += n  # noqa: SLF001  # it starts threads as work comes
    pool.limit += n
    state.consumer._update_prefetch_count(n)  # noqa: SLF001  # as Celery's own command does
    return ok("pool will grow")


@control_command(name="pool_shrink", args=[("n", int)], signature="[N=1]")
def _pool_shrink(state: Any, n: int = 1, **more: Any) -> Any:
    """Take processes from a worker's pool. Threads stay until the worker ends."""
    if isinstance(state.consumer.pool, TaskPool):
        return nok("a pool of threads cannot shrink: start the worker again with a smaller -c")
    return pool_shrink(state, n, **more)


@control_command(name=LOOK_AT_GATES, variadic="queues", signature="[N1 [N2 [N…]]]")
def _look_at_gates(state: Any, queues: list[str], **_: Any) -> Any:
    """Stop consuming these queues where their gates are closed; resume where they are open."""
    for queue in queues:
        state.consumer.follow_gate(queue)
    return ok("looked")
