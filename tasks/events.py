"""The Python API of events: changes of documents, runs, batches and knowledge items, in order and without gaps.

>>> from tasks import events
>>> for event in events.follow(types=["document.completed", "screenshot_batch.*"]):
...     print(event.seq, event.type, event.scope_id, event.data)

Or call a function from a thread:

>>> with events.subscribe(print, types=["music_run.*"]):
...     music.start().wait()

Store the number of the last event, and start after it next time: so you miss no event.
"""

from pipeline.engine.errors import UserError
from pipeline.engine.logs import configure_as_library
from pipeline.engine.outbox import Event
from pipeline.operations.events import (
    EventsGone,
    Filter,
    KeptRange,
    Subscription,
    UnknownEvent,
    after,
    after_if_possible,
    follow,
    follow_progress,
    kept,
    newest,
    one,
    progress,
    progress_from,
    subscribe,
    types,
)

__all__ = [
    "Event",
    "EventsGone",
    "Filter",
    "KeptRange",
    "Subscription",
    "UnknownEvent",
    "UserError",
    "after",
    "after_if_possible",
    "follow",
    "follow_progress",
    "kept",
    "newest",
    "one",
    "progress",
    "progress_from",
    "subscribe",
    "types",
]

configure_as_library()
