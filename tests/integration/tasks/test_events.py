"""Events, followed and subscribed to from Python."""

from pathlib import Path
from queue import Queue

import pytest
from sqlalchemy import delete

from pipeline.engine import events as live
from pipeline.engine.outbox import EVENTS
from pipeline.storage.context import Context
from tasks import documents, events
from tasks.events import Event, EventsGone
from tests.support.samples import text_pdf

WAIT_S = 30


@pytest.fixture
def document(context: Context, tmp_path: Path) -> documents.Document:
    assert context.online
    return documents.submit(text_pdf(tmp_path / "report.pdf", [["one"]]))


def test_events_are_followed_from_a_number_and_from_now_on(document: documents.Document) -> None:
    now = events.follow(types=["document.*"], timeout_s=WAIT_S)
    documents.pause(document.id)
    assert next(now).type == "document.paused", "events count from the call, not from the first `next`"
    types = [event.type for event in events.follow(0, scope_id=document.id, timeout_s=0)]
    assert types == ["document.pending", "document.paused"]
    assert [event.type for event in events.follow(0, types=["document.pa*"], timeout_s=0)] == ["document.paused"]
    assert not list(events.follow(0, flow="music", timeout_s=0))


def test_a_handler_that_raises_is_called_until_the_subscription_ends(document: documents.Document) -> None:
    called: Queue[Event] = Queue()

    def handler(event: Event) -> None:
        called.put(event)
        raise ValueError("the handler's own defect")

    with events.subscribe(handler, 0, types=["document.*"]) as subscription:
        assert called.get(timeout=WAIT_S).type == "document.pending"
        documents.pause(document.id)
        last = called.get(timeout=WAIT_S)
        assert (last.type, last.data["filename"]) == ("document.paused", document.filename)
        documents.resume(document.id)
    assert called.get_nowait().type == "document.pending", "events before the end of the subscription are delivered"
    assert subscription.last == last.seq + 1
    documents.cancel(document.id)
    assert called.empty()
    resumed: Queue[Event] = Queue()
    with events.subscribe(resumed.put, subscription.last):
        assert resumed.get(timeout=WAIT_S).type == "document.cancelled", "no event in between is missed"


def test_events_that_cannot_be_followed_are_refused_at_once(context: Context, document: documents.Document) -> None:
    documents.pause(document.id)
    with pytest.raises(events.UserError, match=r"no event has the type document\.complete:"):
        events.subscribe(print, types=["document.complete"])
    first, last = events.kept().first, events.kept().last
    context.db.run(lambda session: session.execute(delete(EVENTS).where(EVENTS.c.seq == first)))
    with pytest.raises(EventsGone, match=f"only events {last} to {last} are") as refused:
        events.follow(first - 1)
    assert not list(events.follow(refused.value.kept.last, timeout_s=0))
    with pytest.raises(EventsGone):
        events.follow(last + 1)


def test_progress_is_delivered_as_it_comes(context: Context, document: documents.Document) -> None:
    moves = events.follow_progress(flow="screenshots", timeout_s=WAIT_S)
    documents.pause(document.id)
    live.publish(context.redis, "screenshots", "pipeline:batch:finished", batchDbId=7, totalMs=1200)
    assert next(moves)["totalMs"] == "1200"
