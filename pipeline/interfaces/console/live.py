"""What moves on a page: fragments of HTML, pushed when what they show has changed.

A view renders its fragments for everybody who looks at the same thing, so that a hundred consoles cost little more than
one: at most every `LEAST_S` seconds, and at most a tenth of the time. Only fragments that differ from those before are
sent, and after the last event there is always one more rendering.
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

from pipeline.engine.errors import UserError
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
"""Of one core, at most, for each thing that is looked at."""
AGAIN_S = 2.0
"""When a rendering failed; twice as long each time, up to the next."""
AGAIN_AT_MOST_S = 60.0
HEARTBEAT_S = 10.0
LONGEST_S = 1800.0
RETRY_MS = 2000
Fragments = Mapping[str, str]
_SAID = '<div id="said" role="status" aria-live="polite">{}</div>'


class Asked(BaseModel):
    """What a view is asked for: the query of its stream. Views derive theirs from it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class View:
    """Something that people look at while it moves."""

    name: str
    asked: type[Asked]
    fragments: Callable[[Context, Any], Fragments]
    matches: Callable[[Any], Filter]
    """Which events change it."""
    every_s: float | None
    """How often it is rendered without any event, since time changes it; None: never."""


VIEWS: dict[str, View] = {}
Renders = Callable[[Context, Any], Fragments]


def view(
    name: str, *, matches: Callable[[Any], Filter] = lambda _: Filter(), every_s: float | None = None
) -> Callable[[Renders], Renders]:
    """Make a function a view: it gives the HTML of elements by their ids, the same for all callers."""

    def register(render: Renders) -> Renders:
        VIEWS[name] = View(name, get_type_hints(render)["asked"], render, matches, every_s)
        return render

    return register


@dataclass
class Topic:
    """One view of one thing, for all who look at it."""

    view: View
    asked: Asked
    context: Context
    feed: Feed
    threads: CapacityLimiter
    readers: int = 0
    version: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    shown: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    """Element → (the version that brought it, its HTML; None: it is gone)."""

    async def follow(self) -> None:
        """Render, for as long as somebody looks."""
        wanted = self.view.matches(self.asked)
        rest_s = AGAIN_S
        while self.readers and not self.feed.ending.is_set():
            seq, moved, began = self.feed.last, self.feed.moved, time.monotonic()
            cost_s = await self._render()
            rest_s = min(2 * rest_s, AGAIN_AT_MOST_S) if cost_s is None else AGAIN_S
            await asyncio.sleep(rest_s / 2 if cost_s is None else max(LEAST_S, cost_s / SHARE))
            if cost_s is not None:
                await self._until_changed(wanted, seq, moved, began)
        self._tell()

    async def _until_changed(self, wanted: Filter, seq: int, moved: int, began: float) -> None:
        until = began + self.view.every_s if self.view.every_s else float("inf")
        while self.readers and not self.feed.ending.is_set() and time.monotonic() < until:
            events = self.feed.since(seq)
            if events is None or any(wanted.matches(one) for one in events):
                return
            if any(wanted.matches_progress(fields) for _, fields in self.feed.progress_since(moved)):
                return
            seq, moved = self.feed.last, self.feed.moved
            await self.feed.wait(min(1.0, max(0.01, until - time.monotonic())))

    async def _render(self) -> float | None:
        """Seconds of a processor that it took; None: it failed."""
        try:
            found, cost_s = await run_sync(self._fragments, limiter=self.threads)
        except UserError as error:  # what is looked at was deleted, and says so
            self._show({"said": _SAID.format(piece("said_words.html", words=str(error), bad=True))})
            return None
        except Exception as error:  # noqa: BLE001  # whatever it is, the next rendering may do better
            log.warning(
                "console.not_rendered", view=self.view.name, error=type(error).__name__, reason=str(error)[:200]
            )
            return None
        if "said" in self.shown:  # it is there again; the page's own element stays
            found = {**found, "said": _SAID.format("")}
        self._show(found, [name for name, (_, html) in self.shown.items() if html is not None and name not in found])
        return cost_s

    def _show(self, found: Fragments, gone: Sequence[str] = ()) -> None:
        fresh = {name: html for name, html in found.items() if self.shown.get(name, (0, None))[1] != html}
        if fresh or gone:
            self.version += 1
            self.shown |= {name: (self.version, str(html)) for name, html in fresh.items()}
            self.shown |= dict.fromkeys(gone, (self.version, None))
            self._tell()

    def _fragments(self) -> tuple[Fragments, float]:
        # By the clock, a busy machine would make a cheap view rest for seconds.
        begun = time.thread_time()
        return self.view.fragments(self.context, self.asked), time.thread_time() - begun

    def _tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def since(self, version: int) -> str:
        """What changed after this version, as htmx takes it."""
        return "".join(_partial(name, html) for name, (brought, html) in self.shown.items() if brought > version)


def _partial(name: str, html: str | None) -> str:
    how = "outerMorph" if html is not None else "delete"
    return f'<hx-partial hx-target="#{escape(name)}" hx-swap="{how}">{html or ""}</hx-partial>'


class Board:
    """All that is looked at in this process."""

    def __init__(self, context: Context, feed: Feed) -> None:
        self._context, self._feed = context, feed
        self._topics: dict[tuple[str, str], Topic] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = CapacityLimiter(2)

    def topic(self, view: View, asked: Asked) -> Topic:
        """The one topic of all who ask this; rendered from now on."""
        key = view.name, asked.model_dump_json()
        found = self._topics.get(key)
        if found is None:
            found = self._topics[key] = Topic(view, asked, self._context, self._feed, self._threads)
        found.readers += 1
        if found.readers == 1:
            task = asyncio.create_task(found.follow())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return found

    def leave(self, topic: Topic) -> None:
        """One looks no longer."""
        topic.readers -= 1
        key = topic.view.name, topic.asked.model_dump_json()
        if not topic.readers and self._topics.get(key) is topic:
            del self._topics[key]  # its task ends by itself


def board(request: Request, feed: Feed) -> Board:
    """The application's."""
    state = request.app.state
    if not hasattr(state, "board"):
        state.board = Board(state.context, feed)
    found: Board = state.board
    return found


def _asked(request: Request, name: Annotated[Id, Query(alias="view")]) -> tuple[View, Asked]:
    found = VIEWS.get(name)
    if found is None:
        raise Refused("there is no such view", code="not_found")
    given: dict[str, Any] = {}
    for key in request.query_params.keys() - {"view"}:
        values = request.query_params.getlist(key)
        given[key] = values if len(values) > 1 else values[0]
    try:
        return found, found.asked.model_validate(given)
    except ValidationError as error:
        raise RequestValidationError([{**one, "loc": ("query", *one["loc"])} for one in error.errors()]) from None


@router.get("/live", response_class=EventSourceResponse)
async def follow(
    request: Request,
    feed: Annotated[Feed, Depends(feeds.for_one)],
    caller: ByCaller,
    chosen: Annotated[tuple[View, Asked], Depends(_asked)],
) -> AsyncIterator[ServerSentEvent]:
    """The fragments of a view: all of them first, then those that change."""
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
