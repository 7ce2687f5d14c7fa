"""Webhooks as Celery tasks: lanes that send one delivery in each hop, to the next endpoint in turn."""

from collections.abc import Iterator, Sequence
from typing import Any

from celery import group

from pipeline.engine.launch import Place, Wanted
from pipeline.flows.webhooks import plan
from pipeline.flows.webhooks.flow import FLOW
from pipeline.flows.webhooks.plan import QUEUE
from pipeline.flows.webhooks.work import delivery
from pipeline.process import get_context
from pipeline.storage.context import Context
from tasks.app import app
from tasks.flow import FlowTasks, Messages, at_work, once, owner

_PLACES = f"{FLOW.name}:{plan.SEND}"


def _messages(context: Context, scopes: Sequence[str]) -> Iterator[Messages]:
    if plan.SEND in scopes and (places := plan.places(context)):
        yield Messages(Wanted(_PLACES, QUEUE, places), lambda numbers: group(send.si(number) for number in numbers))


TASKS = FlowTasks(FLOW, messages=_messages)


@app.task(bind=True, name="webhooks.send", ignore_result=True)
@once
def send(self: Any, number: int) -> None:
    """Send the next delivery, and queue up again if more wait."""
    context = get_context()
    with at_work(self, Place(_PLACES, QUEUE, number)) as place:
        if place is None:
            return
        settled = delivery.send(context, owner(self))
        if settled.done and number < plan.places(context):
            place.requeue(send.si(number))
