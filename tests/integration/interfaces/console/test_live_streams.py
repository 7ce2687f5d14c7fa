"""Consoles on one view, over a real server: they share its renderings, and each shows the last state."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from html import unescape
from threading import Thread
from typing import Any

import httpx2
import pytest

from pipeline.engine import events as progress
from pipeline.flows.documents.models import DOCUMENTS
from pipeline.flows.documents.states import DOCUMENT, DocumentEvent, DocumentStatus
from pipeline.interfaces.console import live
from pipeline.storage.context import Context
from tests.integration.interfaces.api.test_events import Server, server
from tests.support.documents import insert_document
from tests.support.waiting import wait_until

__all__ = ["server"]
CONSOLES = 8
"""The number of consoles for each view."""
CHANGES = 300
_PARTIAL = re.compile(r'<hx-partial hx-target="#([^"]+)" hx-swap="outerMorph">(.*?)</hx-partial>', re.DOTALL)
E = DocumentEvent


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_API__STREAMS_PER_KEY": "40"}


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the renderings of each view."""
    counts: Counter[str] = Counter()

    def counted(view: live.View) -> live.View:
        def render(context: Context, query: Any) -> live.Fragments:
            counts[view.name] += 1
            return view.fragments(context, query)

        return replace(view, fragments=render, every_s=None)

    for name in ("document", "documents"):
        monkeypatch.setitem(live.VIEWS, name, counted(live.VIEWS[name]))
    return counts


class Console:
    """A console with one view. It keeps the last fragment of each element."""

    def __init__(self, url: str, view: str, element: str) -> None:
        self.view, self._element = view, element
        self.shown: dict[str, str] = {}
        self.messages = 0
        self._url = url
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with httpx2.Client(timeout=60) as client, client.stream("GET", self._url) as answer:
            lines: list[str] = []
            for line in answer.iter_lines():
                if line.startswith("data:"):
                    lines.append(line[5:].removeprefix(" "))
                elif not line and lines:
                    self.shown |= dict(_PARTIAL.findall("\n".join(lines)))
                    self.messages += 1
                    lines.clear()

    def says(self, words: str) -> bool:
        return words in unescape(self.shown.get(self._element, ""))

    def end(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive(), "a stream outlasts its server"


@contextmanager
def consoles(server: Server, document_id: str, count: int = CONSOLES) -> Iterator[list[Console]]:
    """Open consoles of each view, and wait until all have a fragment."""
    base = server.url.replace("/api/v1/events", "/console/live?view=")
    views = [
        ("document", f"&id={document_id}&first=1", "facts"),
        ("documents", f"&rows={document_id}", f"d-{document_id}"),
    ]
    with ExitStack() as ending:
        opened = [Console(f"{base}{view}{query}", view, element) for view, query, element in views * count]
        for console in opened:
            ending.callback(console.end)
        ending.callback(server.end)
        wait_until(lambda: all(console.messages for console in opened), 60, "all consoles are open")
        yield opened


def mover(context: Context, document_id: str) -> Callable[[DocumentEvent], None]:
    """Return a function that changes the document by an event, in a transaction of its own."""
    where = DOCUMENTS.c.id == document_id

    def move(event: DocumentEvent) -> None:
        with context.db.transaction() as session:
            assert DOCUMENT.move(session, DOCUMENTS, event, where)

    return move


def test_many_events_cause_few_renderings_and_all_consoles_show_the_last_state(
    context: Context, server: Server, rendered: Counter[str]
) -> None:
    document_id = insert_document(context, DocumentStatus.PENDING)
    move = mover(context, document_id)
    with consoles(server, document_id) as looking:
        opened = Counter(rendered)
        assert opened == {"document": 1, "documents": 1}, "the consoles share the first renderings, too"
        for number in range(CHANGES):
            move(E.RESUME_SPLIT if number % 2 else E.PAUSE)
            progress.publish(context.redis, "documents", "document", document=document_id, progress=number)
        move(E.CANCEL)
        wait_until(
            lambda: all(console.says("cancelled") for console in looking),
            60,
            "all consoles show the last state",
            last=lambda: Counter(console.view for console in looking if not console.says("cancelled")),
        )
        for view in opened:
            renderings = rendered[view] - opened[view]
            assert 0 < renderings < CHANGES / 2, "far fewer than events, whatever the number of consoles"
            sent = [console.messages for console in looking if console.view == view]
            assert max(sent) <= rendered[view], "no console receives more than was rendered"


def test_a_console_that_connects_late_shows_the_last_state(
    context: Context, server: Server, rendered: Counter[str]
) -> None:
    document_id = insert_document(context, DocumentStatus.PENDING)
    mover(context, document_id)(E.CANCEL)
    with consoles(server, document_id, 1) as looking:
        assert all(console.says("cancelled") for console in looking)


def test_events_of_other_documents_render_nothing_on_a_document_page(
    context: Context, server: Server, rendered: Counter[str]
) -> None:
    shown, other = (insert_document(context, DocumentStatus.PENDING) for _ in range(2))
    with consoles(server, shown, 2) as looking:
        mover(context, other)(E.PAUSE)
        mover(context, shown)(E.PAUSE)
        wait_until(lambda: all(console.says("paused") for console in looking), 60, "all consoles show the pause")
        now = rendered["document"]
        for number in range(20):
            mover(context, other)(E.PAUSE if number % 2 else E.RESUME_SPLIT)
        mover(context, shown)(E.CANCEL)
        wait_until(
            lambda: all(console.says("cancelled") for console in looking), 60, "all consoles show the last state"
        )
        assert rendered["document"] == now + 1, "only the last event causes a rendering"
