"""A task that makes one call through a gate and stores nothing, for measurements of the gates alone."""

from dataclasses import astuple
from typing import Any

from celery import Celery
from kombu.entity import Exchange, Queue

from pipeline.engine.guarded_call import GateClosed
from pipeline.process import get_context
from pipeline.providers import gates, registry
from pipeline.settings import get_settings
from tasks.celery_internals import messages as _messages  # noqa: F401  # every message says when it was sent
from tasks.presence import holder_of

PROVIDER = "sample"
QUEUE = "vision.sample"

app = Celery("gated", broker=get_settings().broker_url, set_as_current=False)
app.conf.update(
    worker_consumer="tasks.consumer:GateConsumer",
    imports=("tasks.presence",),
    task_acks_late=True,
    task_queues=[Queue(QUEUE, Exchange(QUEUE), routing_key=QUEUE)],
    task_default_queue=QUEUE,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task(bind=True, ignore_result=True, shared=False, name="gated.call")
def call(self: Any, number: int) -> None:
    """Make one call with the number as its prompt. If the gate has closed, queue at the tail again, as lanes do."""
    context = get_context()
    guarded = gates.guarded_call(context, QUEUE, holder_of(self.request.id))
    assert guarded is not None
    service = registry.text(context.settings, PROVIDER)
    try:
        guarded.call(lambda: service.complete(str(number)), lambda answer: (answer.model, *astuple(answer.usage)))
    except GateClosed:
        call.apply_async((number,))
    finally:
        guarded.leave()
