"""Code that can stall anywhere, however deep in calls. Uses greenlets, which switch far faster than threads."""

from collections.abc import Callable

from greenlet import getcurrent, greenlet


class Coroutine:
    """A function that runs when resumed, until it hands back or ends."""

    def __init__(self, body: Callable[[], None]) -> None:
        self._greenlet = greenlet(body)
        self.spoke: tuple[int, int] | None = None
        """When the function last called Redis, and how often Redis had been emptied by then."""

    @property
    def ended(self) -> bool:
        """Whether the function has returned."""
        return self._greenlet.dead

    def resume(self) -> None:
        """Run the function until it hands back or ends."""
        self._greenlet.parent = getcurrent()
        self._greenlet.switch()

    def hand_back(self) -> None:
        """Hand back from within the function. Returns when the function is resumed."""
        self._greenlet.parent.switch()
