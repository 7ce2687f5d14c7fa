"""Code that can be held up anywhere, however deep in calls: a thread each, of which exactly one runs at any time."""

import threading
from collections.abc import Callable


class Carriers:
    """Threads that wait to carry the next coroutine: starting one takes longer than handing over to one."""

    def __init__(self) -> None:
        self._idle: list[_Carrier] = []

    def take(self) -> "_Carrier":
        return self._idle.pop() if self._idle else _Carrier()

    def give_back(self, carrier: "_Carrier") -> None:
        self._idle.append(carrier)


class _Carrier:
    def __init__(self) -> None:
        self.go, self.back = threading.Lock(), threading.Lock()
        self.go.acquire()
        self.back.acquire()
        self.body: Callable[[], None] = lambda: None
        threading.Thread(target=self._carry, name="carrier", daemon=True).start()

    def _carry(self) -> None:
        while True:
            self.go.acquire()
            self.body()
            self.back.release()


class Coroutine:
    """A function that runs when resumed, until it hands back or ends."""

    def __init__(self, carriers: Carriers, body: Callable[[], None]) -> None:
        self._carriers = carriers
        self._carrier = carriers.take()
        self._carrier.body = self._run
        self._body = body
        self.ended = False
        self.spoke: tuple[int, int] | None = None
        """When it last spoke to Redis, and how often that had been emptied by then."""

    def _run(self) -> None:
        self._body()
        self.ended = True

    def resume(self) -> None:
        """Let it run until it hands back or ends."""
        self._carrier.go.release()
        self._carrier.back.acquire()
        if self.ended:
            self._carriers.give_back(self._carrier)

    def hand_back(self) -> None:
        """Called by the function itself: returns when it is resumed."""
        self._carrier.back.release()
        self._carrier.go.acquire()
