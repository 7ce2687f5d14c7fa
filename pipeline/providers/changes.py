"""Gates that may have opened or closed: whoever changes one says so here, and who wants to know at once has registered.

What is told is a nudge, never the truth: a message that is lost costs at most the time until somebody looks.
"""

from collections.abc import Callable, Collection

from pipeline.storage.context import Context

Tell = Callable[[Context, Collection[str]], None]
"""Called with queues whose gates are worth a look. It raises nothing, and returns at once if Redis is away."""
_registered: list[Tell] = []


def register(tell: Tell) -> None:
    """Have `tell` called from now on, instead of what was registered before."""
    _registered[:] = [tell]


def changed(context: Context, queues: Collection[str]) -> None:
    """The gates of these queues may have opened or closed."""
    if queues:
        for tell in _registered:
            tell(context, queues)
