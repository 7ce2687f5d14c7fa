"""Code that can be held up anywhere, however deep in calls: a greenlet each, since threads hand over far slower."""

from collections.abc import Callable

from greenlet import getcurrent, greenlet


class Coroutine:
    """A function that runs when resumed, until it hands back or ends."""

    def __init__(self, body: Callable[[], None]) -> None:
        self._greenlet = greenlet(body)
        self.spoke: tuple[int, int] | None = None
        """When it last spoke to Redis, and how often that had been emptied by then."""

    @property
    def ended(self) -> bool:
        """Whether the function has returned."""
        return self._greenlet.dead

    def resume(self) -> None:
        """Let it run until it hands back or ends."""
        self._greenlet.parent = getcurrent()
        self._greenlet.switch()

    def hand_back(self) -> None:
        """Called by the function itself: returns when it is resumed."""
        self._greenlet.parent.switch()
