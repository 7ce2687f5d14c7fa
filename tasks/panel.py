"""Control commands of every worker, such as `celery -A tasks inspect gates`."""

from typing import Any

from celery.worker.control import control_command, inspect_command, ok

from tasks.gates import LOOK_AT_GATES


@inspect_command(name="active_queues")
def _active_queues(state: Any, **_: Any) -> Any:
    """The queues that a worker consumes, including queues that limits hold up for a moment."""
    return [dict(queue.as_dict(recurse=True)) for queue in state.consumer.consumed()]


@inspect_command(name="gates")
def _gates(state: Any, **_: Any) -> Any:
    """In words, by queue: why a worker takes no messages from some of its queues."""
    return state.consumer.waiting_reasons()


@control_command(name=LOOK_AT_GATES, variadic="queues", signature="[N1 [N2 [N…]]]")
def _look_at_gates(state: Any, queues: list[str], **_: Any) -> Any:
    """Stop consuming these queues where their gates are closed; resume where they are open."""
    for queue in queues:
        state.consumer.follow_gate(queue)
    return ok("looked")
