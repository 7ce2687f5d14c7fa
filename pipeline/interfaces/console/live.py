"""Live pages: the server pushes fragments of HTML when their content changes.

All callers of a view with the same query share its renderings, so that a hundred consoles cost little more than one.
A view renders at most every `LEAST_S` seconds, and at most a tenth of the time. It sends only fragments that
differ from the last ones, and always renders once more after the last event.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, get_type_hints

import structlog
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.sse import EventSourceResponse, ServerSentEvent
from markupsafe import escape
from pydantic import BaseModel, ConfigDict, ValidationError

from pipeline.engine.errors import UserError, told
from pipeline.interfaces.console.page import piece
from pipeline.interfaces.http import streams as feeds
from pipeline.interfaces.http.dependencies import ByCaller, reader
from pipeline.interfaces.http.fields import Id
from pipeline.interfaces.http.streams import Feed, Stay
from pipeline.operations import events
from pipeline.operations.events import Filter
from pipeline.operations.refusal import Refused
from pipeline.storage.context import Context

router = APIRouter(include_in_schema=False, dependencies=reader)
log = structlog.get_logger(__name__)
LEAST_S = 0.3
SHARE = 0.1
"""The most of one core that a topic uses."""
RETRY_S = 2.0
"""The wait after a failed rendering; it doubles each time, up to `RETRY_AT_MOST_S`."""
RETRY_AT_MOST_S = 60.0
HEARTBEAT_S = 10.0
LONGEST_S = 1800.0
RETRY_MS = 2000
Fragments = Mapping[str, str]
_SAID = '<div id="said" role="status" aria-live="polite">{}</div>'


class ViewQuery(BaseModel):
    """The query of a view's stream. Each view derives its own from it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class View:
    """A part of a page that changes while it is open."""

    name: str
    query: type[ViewQuery]
    fragments: Callable[[Context, Any], Fragments]
    matches: Callable[[Any], Filter]
    """The events that change it."""
    every_s: float | None
    """The longest time between renderings without an event, because time changes it; None: no limit."""


VIEWS: dict[str, View] = {}
Renders = Callable[[Context, Any], Fragments]


def view(
    name: str, *, matches: Callable[[Any], Filter] = lambda _: Filter(), every_s: float | None = None
) -> Callable[[Renders], Renders]:
    """Return a decorator that registers a view: a function that returns HTML by element id, the same for all callers.

    `matches`: the events after which it renders again (default: all); `every_s`: the longest time between renderings
    without an event (None: no limit).
    """

    def register(render: Renders) -> Renders:
        VIEWS[name] = View(name, get_type_hints(render)["query"], render, matches, every_s)
        return render

    return register


@dataclass
class Topic:
    """A view with one query, for all streams that show it."""

    view: View
    query: ViewQuery
    context: Context
    feed: Feed
    threads: CapacityLimiter
    readers: int = 0
    version: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    shown: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    """Element id → (the version of its last change, its HTML; None: it was removed)."""

    async def follow(self) -> None:
        """While the topic has readers, render at once, after events and progress that match, and every `every_s`
        seconds. One rendering may follow several events; a failed one is repeated."""
        wanted = self.view.matches(self.query)
        rest_s = RETRY_S
        while self.readers and not self.feed.ending.is_set():
            seq, moved, began = self.feed.last, self.feed.moved, time.monotonic()
            cost_s = await self._render()
            rest_s = min(2 * rest_s, RETRY_AT_MOST_S) if cost_s is None else RETRY_S
            await asyncio.sleep(rest_s / 2 if cost_s is None else max(LEAST_S, cost_s / SHARE))
            if cost_s is not None:
                await self._until_changed(wanted, seq, moved, began)
        self._publish()

    async def _until_changed(self, wanted: Filter, seq: int, moved: int, began: float) -> None:
        until = began + self.view.every_s if self.view.every_s else float("inf")
        while self.readers and not self.feed.ending.is_set() and time.monotonic() < until:
            events = self.feed.since(seq)
            if events is None or any(wanted.matches(event) for event in events):
                return
            if any(wanted.matches_progress(fields) for _, fields in self.feed.progress_since(moved)):
                return
            seq, moved = self.feed.last, self.feed.moved
            await self.feed.wait(min(1.0, max(0.01, until - time.monotonic())))

    async def _render(self) -> float | None:
        """Render and publish what changed; return the processor seconds used.

        None: it failed, and the old fragments stay; the words of a `UserError` are shown beside them.
        """
        try:
            fragments, cost_s = await run_sync(self._fragments, limiter=self.threads)
        except UserError as error:  # the subject was deleted: show the error
            self._show({"said": _SAID.format(piece("said_words.html", words=told(error), bad=True))})
            return None
        except Exception as error:  # noqa: BLE001  # the next rendering may succeed
            log.warning(
                "console.not_rendered", view=self.view.name, error=type(error).__name__, reason=str(error)[:200]
            )
            return None
        if "said" in self.shown:  # the subject is back; keep the page's own element
            fragments = {**fragments, "said": _SAID.format("")}
        self._show(
            fragments, [name for name, (_, html) in self.shown.items() if html is not None and name not in fragments]
        )
        return cost_s

    def _show(self, fragments: Fragments, removed: Sequence[str] = ()) -> None:
        fresh = {name: html for name, html in fragments.items() if self.shown.get(name, (0, None))[1] != html}
        if fresh or removed:
            self.version += 1
            self.shown |= {name: (self.version, str(html)) for name, html in fresh.items()}
            self.shown |= dict.fromkeys(removed, (self.version, None))
            self._publish()

    def _fragments(self) -> tuple[Fragments, float]:
        # Processor time: wall time would make a cheap view rest for seconds on a busy machine.
        started = time.thread_time()
        return self.view.fragments(self.context, self.query), time.thread_time() - started

    def _publish(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def since(self, version: int) -> str:
        """Return as one string the fragments that changed or disappeared after this version, in htmx's elements."""
        return "".join(_partial(name, html) for name, (brought, html) in self.shown.items() if brought > version)


def _partial(name: str, html: str | None) -> str:
    how = "outerMorph" if html is not None else "delete"
    return f'<hx-partial hx-target="#{escape(name)}" hx-swap="{how}">{html or ""}</hx-partial>'


class Board:
    """All topics of this process that have readers."""

    def __init__(self, context: Context, feed: Feed) -> None:
        self._context, self._feed = context, feed
        self._topics: dict[tuple[str, str], Topic] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = CapacityLimiter(2)

    def topic(self, view: View, query: ViewQuery) -> Topic:
        """Return the shared topic of this view and query, with one more reader; start to render it."""
        key = view.name, query.model_dump_json()
        shared = self._topics.get(key)
        if shared is None:
            shared = self._topics[key] = Topic(view, query, self._context, self._feed, self._threads)
        shared.readers += 1
        if shared.readers == 1:
            task = asyncio.create_task(shared.follow())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return shared

    def leave(self, topic: Topic) -> None:
        """Remove a reader of the topic. Without readers, its rendering ends."""
        topic.readers -= 1
        key = topic.view.name, topic.query.model_dump_json()
        if not topic.readers and self._topics.get(key) is topic:
            del self._topics[key]  # its task sees that no reader is left, and ends


def board(request: Request, feed: Feed) -> Board:
    """Return the application's board."""
    state = request.app.state
    if not hasattr(state, "board"):
        state.board = Board(state.context, feed)
    shared_board: Board = state.board
    return shared_board


def _requested_view(request: Request, name: Annotated[Id, Query(alias="view")]) -> tuple[View, ViewQuery]:
    chosen = VIEWS.get(name)
    if chosen is None:
        raise Refused("unknown view", code="not_found")
    parameters: dict[str, Any] = {}
    for key in request.query_params.keys() - {"view"}:
        values = request.query_params.getlist(key)
        parameters[key] = values if len(values) > 1 else values[0]
    try:
        return chosen, chosen.query.model_validate(parameters)
    except ValidationError as error:
        raise RequestValidationError([{**fault, "loc": ("query", *fault["loc"])} for fault in error.errors()]) from None


@router.get("/live", response_class=EventSourceResponse)
async def follow(
    request: Request,
    feed: Annotated[Feed, Depends(feeds.for_one)],
    caller: ByCaller,
    chosen: Annotated[tuple[View, ViewQuery], Depends(_requested_view)],
) -> AsyncIterator[ServerSentEvent]:
    """Stream the fragments of a view: all of them first, then each change."""
    feed.start((await feed.run(events.kept)).last)
    shown, stay = board(request, feed), Stay(feed, caller, LONGEST_S)
    topic = shown.topic(*chosen)
    try:
        yield ServerSentEvent(comment="live", retry=RETRY_MS)
        version, said_at = 0, time.monotonic()
        while await stay.lasts():
            changed = topic.changed
            if topic.version > version:
                sent, version = topic.since(version), topic.version
                yield ServerSentEvent(raw_data=sent)
                said_at = time.monotonic()
            elif time.monotonic() - said_at > HEARTBEAT_S:
                yield ServerSentEvent(comment="still here")
                said_at = time.monotonic()
            try:
                async with asyncio.timeout(1.0):
                    await changed.wait()
            except TimeoutError:
                pass
    finally:
        shown.leave(topic)
