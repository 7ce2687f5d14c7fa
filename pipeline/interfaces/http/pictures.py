"""Pictures that are made when somebody asks: few at once, each once, and none for who has gone.

Whoever scrolls through a long document asks for hundreds. Those that wait hold no thread, and leave when the caller
does; pictures of the same page are one.
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
"""Makes a picture as long as it is wanted; in a thread."""
AT_ONCE = 2
MOST, EACH = 256, 128
"""Requests that wait for pictures, of all callers and of one."""
_LOOK_S = 0.25


@dataclass
class _Picture:
    make: Make
    urgent: bool
    done: "asyncio.Future[bytes]"
    askers: int = 0
    running: bool = False


class Pictures:
    """Those that are being made, or wait for that, in one process; for one event loop."""

    def __init__(self, ending: Event) -> None:
        """`ending` is set when the server begins to end."""
        self._ending = ending
        self._known: dict[str, _Picture] = {}
        self._callers: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    async def get(self, caller: Caller, key: str, make: Make, *, urgent: bool) -> bytes | None:
        """The picture of this key; None if the caller has gone. The `urgent` ones first, then the newest.

        Raises `Refused` if too many wait, and what `make` raises.
        """
        self._admit(caller.id)
        picture = self._known.get(key)
        if picture is None:
            done = asyncio.get_running_loop().create_future()
            picture = self._known[key] = _Picture(make, urgent, done)
        picture.askers += 1
        self._callers[caller.id] += 1
        try:
            self._begin()
            while not picture.done.done():
                await asyncio.wait([picture.done], timeout=_LOOK_S)
                if not picture.done.done() and (self._ending.is_set() or await caller.is_gone()):
                    return None
            return picture.done.result()
        finally:
            picture.askers -= 1
            self._callers[caller.id] -= 1
            self._callers += Counter()  # without those that have none
            if not picture.askers and not picture.running and self._known.get(key) is picture:
                del self._known[key]

    def _admit(self, caller: str) -> None:
        if self._callers[caller] >= EACH:
            said = f"{EACH} pictures of yours are being made already: wait for one"
            raise Refused(said, code="too_many_requests", headers={"Retry-After": "1"})
        if self._callers.total() >= MOST:
            said = "too many pictures are being made: try again in a moment"
            raise Refused(said, code="busy", headers={"Retry-After": "2"})

    def _begin(self) -> None:
        """Begin with as many as may be made at once."""
        room = AT_ONCE - sum(picture.running for picture in self._known.values())
        waiting = [one for one in reversed(self._known.items()) if not one[1].running]
        for key, picture in sorted(waiting, key=lambda one: not one[1].urgent)[: max(0, room)]:
            picture.running = True
            task = asyncio.create_task(self._make(key, picture))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _make(self, key: str, picture: _Picture) -> None:
        try:
            made = await run_sync(picture.make, lambda: picture.askers > 0 and not self._ending.is_set())
        except Unwanted:
            picture.running = False  # somebody may have asked again just now
        except Exception as error:  # noqa: BLE001  # whoever asked is told
            picture.done.set_exception(error)
            picture.done.exception()  # they may have gone: it is not left unlooked at
        else:
            picture.done.set_result(made)
        if picture.done.done() or not picture.askers:
            del self._known[key]
        self._begin()
