"""Renders pictures on request: few at a time, each once, and none after its last client disconnects.

A reader who scrolls through a long document requests hundreds. Waiting requests hold no thread, and end when their
client disconnects; requests for the same picture share one rendering.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

from anyio.to_thread import run_sync

from pipeline.operations.caller import Caller
from pipeline.operations.refusal import Refused
from pipeline.reading.sandbox.limits import Unwanted

Make = Callable[[Callable[[], bool]], bytes]
"""Renders a picture in a thread; calls its argument now and then, and stops once that returns False."""
AT_ONCE = 2
"""Pictures that are rendered at once for one caller; for all callers, twice as many."""
MOST, EACH = 256, 128
"""Requests that wait for pictures, of all callers and of one."""
_POLL_S = 0.25


@dataclass
class _Picture:
    make: Make
    caller: str
    urgent: bool
    done: "asyncio.Future[bytes]"
    askers: int = 0
    running: bool = False


class Pictures:
    """The pictures of one event loop that run or wait."""

    def __init__(self, ending: Event) -> None:
        """`ending` is set when the server begins to end."""
        self._ending = ending
        self._known: dict[str, _Picture] = {}
        self._callers: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def get(self, caller: Caller, key: str, make: Make, *, urgent: bool) -> bytes | None:
        """Return the picture of this key, rendered by `make`; None if the caller disconnects or the server shuts down.
        Requests for the same key share one rendering, whose result is not kept.

        Urgent pictures go first, then the newest. Raises `Refused` if too many requests wait, and the errors of `make`.
        """
        self._admit(caller.id)
        picture = self._known.get(key)
        if picture is None:
            done = asyncio.get_running_loop().create_future()
            picture = self._known[key] = _Picture(make, caller.id, urgent, done)
        picture.askers += 1
        self._callers[caller.id] += 1
        try:
            self._begin()
            while not picture.done.done():
                await asyncio.wait([picture.done], timeout=_POLL_S)
                if not picture.done.done() and (self._ending.is_set() or await caller.is_gone()):
                    return None
            return picture.done.result()
        finally:
            picture.askers -= 1
            self._callers[caller.id] -= 1
            self._callers += Counter()  # drops callers with none
            if not picture.askers and not picture.running and self._known.get(key) is picture:
                del self._known[key]

    def _admit(self, caller: str) -> None:
        if self._callers[caller] >= EACH:
            detail = f"{EACH} of your requests wait for pictures: wait until one ends"
            raise Refused(detail, code="too_many_requests", headers={"Retry-After": "1"})
        if self._callers.total() >= MOST:
            detail = "too many requests wait for pictures: try again in a moment"
            raise Refused(detail, code="busy", headers={"Retry-After": "2"})

    def _begin(self) -> None:
        """Start waiting pictures as long as places are free."""
        run_for = Counter(picture.caller for picture in self._known.values() if picture.running)
        waiting = [(key, picture) for key, picture in reversed(self._known.items()) if not picture.running]
        for key, picture in sorted(waiting, key=lambda entry: not entry[1].urgent):
            if run_for.total() >= 2 * AT_ONCE or run_for[picture.caller] >= AT_ONCE:
                continue
            picture.running = True
            run_for[picture.caller] += 1
            task = asyncio.create_task(self._make(key, picture))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _make(self, key: str, picture: _Picture) -> None:
        try:
            rendered = await run_sync(picture.make, lambda: picture.askers > 0 and not self._ending.is_set())
        except Unwanted:
            picture.running = False  # another request may wait for it by now
        except Exception as error:  # noqa: BLE001  # the waiting requests answer with it
            picture.done.set_exception(error)
            picture.done.exception()  # marks it as retrieved: the clients may have disconnected
        else:
            picture.done.set_result(rendered)
        if picture.done.done() or not picture.askers:
            del self._known[key]
        self._begin()
