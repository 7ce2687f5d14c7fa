"""The console renders a view once for all its clients, and the last state always reaches them."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from threading import Event as Ending
from typing import Any

import pytest
from anyio import CapacityLimiter

from pipeline.engine.errors import UserError
from pipeline.interfaces.console import live
from pipeline.interfaces.console.live import Topic, View, ViewQuery
from tasks.events import Event, Filter


class Stream:
    """A feed whose events the test makes."""

    def __init__(self) -> None:
        self.ending = Ending()
        self.events: deque[Event] = deque()
        self.moved = 0

    @property
    def last(self) -> int:
        return len(self.events)

    def happen(self, kind: str = "document.completed") -> None:
        now = datetime.now(UTC)
        self.events.append(Event(len(self.events) + 1, kind, "documents", "document", "d1", "COMPLETED", now, {}))

    def since(self, seq: int) -> list[Event]:
        return [event for event in self.events if event.seq > seq]

    def progress_since(self, number: int) -> list[Any]:
        return []

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.005))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LEAST_S", 0.01)
    monkeypatch.setattr(live, "SHARE", 1.0)
    monkeypatch.setattr(live, "RETRY_S", 0.01)


def followed(
    feed: Stream, render: Callable[[], dict[str, str]], body: Callable[[Topic], Awaitable[None]], kind: str = ""
) -> Topic:
    """Run `body` while a client watches the page that `render` returns."""

    async def run() -> Topic:
        view = View("v", ViewQuery, lambda _, __: render(), lambda _: Filter("", (kind,) if kind else ()), None)
        topic = Topic(view, ViewQuery(), None, feed, CapacityLimiter(1), readers=1)  # type: ignore[arg-type]
        following = asyncio.create_task(topic.follow())
        await body(topic)
        topic.readers = 0
        await following
        return topic

    return asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


def test_only_changed_fragments_are_sent_after_the_first_time() -> None:
    feed, pages = Stream(), {"n": 1}

    async def body(topic: Topic) -> None:
        await until(lambda: topic.version == 1)
        assert "#head" in topic.since(0)
        assert "#still" in topic.since(0)
        pages["n"] = 2
        feed.happen()
        await until(lambda: topic.version == 2)
        assert topic.since(1) == '<hx-partial hx-target="#head" hx-swap="outerMorph"><b id="head">2</b></hx-partial>'

    followed(feed, lambda: {"head": f'<b id="head">{pages["n"]}</b>', "still": '<i id="still">0</i>'}, body)


def test_a_fragment_that_disappears_is_deleted() -> None:
    feed, shown = Stream(), {"row": "<i id='row'></i>"}

    async def body(topic: Topic) -> None:
        await until(lambda: topic.version == 1)
        shown.clear()
        feed.happen()
        await until(lambda: topic.version == 2)
        assert topic.since(1) == '<hx-partial hx-target="#row" hx-swap="delete"></hx-partial>'

    followed(feed, lambda: dict(shown), body)


def test_many_events_are_few_renderings_and_the_last_state_is_shown() -> None:
    feed, rendered = Stream(), [0]

    def render() -> dict[str, str]:
        rendered[0] += 1
        return {"n": str(feed.last)}

    async def body(topic: Topic) -> None:
        for _ in range(2000):
            feed.happen()
        await until(lambda: topic.shown.get("n", (0, ""))[1] == "2000")

    followed(feed, render, body)
    assert rendered[0] < 100


def test_fifty_consoles_share_renderings_and_all_see_the_last_of_many_pages() -> None:
    feed, rendered = Stream(), [0]
    seen: list[list[str]] = [[] for _ in range(50)]

    def render() -> dict[str, str]:
        rendered[0] += 1
        return {"n": f"page {feed.last}"}

    async def follow(topic: Topic, sent: list[str]) -> None:
        version = 0
        while True:
            changed = topic.changed  # before the first render, like the stream
            if topic.version > version:
                sent.append(topic.since(version))
                version = topic.version
            if sent and "page 2000<" in sent[-1]:
                return
            await changed.wait()

    async def body(topic: Topic) -> None:
        consoles = [asyncio.create_task(follow(topic, sent)) for sent in seen]
        for number in range(2000):
            feed.happen("document.page_completed")
            if number % 100 == 0:
                await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await asyncio.gather(*consoles)

    followed(feed, render, body)
    assert all(sent[-1].endswith(">page 2000</hx-partial>") for sent in seen)
    assert rendered[0] < 100, "the view was rendered for each event or each console"


def test_events_of_others_render_nothing() -> None:
    feed, rendered = Stream(), [0]

    def render() -> dict[str, str]:
        rendered[0] += 1
        return {"n": "1"}

    async def body(topic: Topic) -> None:
        await until(lambda: topic.version == 1)
        feed.happen("music_run.completed")
        await asyncio.sleep(0.1)

    followed(feed, render, body, "document.completed")
    assert rendered[0] == 1


def test_a_failed_rendering_is_retried() -> None:
    feed, tries = Stream(), [0]

    def render() -> dict[str, str]:
        tries[0] += 1
        if tries[0] < 3:
            raise OSError("the database is away")
        return {"n": "1"}

    async def body(topic: Topic) -> None:
        await until(lambda: topic.version == 1)

    assert followed(feed, render, body).since(0).endswith(">1</hx-partial>")


def test_a_fragment_returns_after_a_failed_rendering_and_the_message_line_stays() -> None:
    feed, tries = Stream(), [0]

    def render() -> dict[str, str]:
        tries[0] += 1
        if tries[0] == 1:
            raise UserError("Redis is down", code="offline")
        return {"n": "1"}

    async def body(topic: Topic) -> None:
        await until(lambda: "n" in topic.shown)

    sent = followed(feed, render, body).since(1)
    assert 'id="said" role="status" aria-live="polite"></div>' in sent
    assert "delete" not in sent


def test_the_view_of_a_deleted_document_shows_that_it_is_deleted() -> None:
    feed = Stream()

    def render() -> dict[str, str]:
        raise UserError("there is no document d1", code="unknown_document")

    async def body(topic: Topic) -> None:
        await until(lambda: topic.version == 1)

    assert "there is no document d1" in followed(feed, render, body).since(0)
