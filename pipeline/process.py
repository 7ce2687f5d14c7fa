"""What this process works with: one context, of its settings, every flow and the database. Made on first use, and again
after a fork."""

import os
from importlib import import_module
from threading import Lock

from pipeline.engine.transaction import Dispatch
from pipeline.flows import declarations
from pipeline.settings import Settings, get_settings
from pipeline.storage.context import Context

_lock = Lock()
_contexts: dict[int, Context] = {}


def new_context(settings: Settings) -> Context:
    """Return a new context of every flow; the caller disposes of its database."""
    return Context(settings, declarations, _launch)


def _launch(context: Context, dispatch: Dispatch) -> None:
    # By name, and when there is something to send: who only reads needs no Celery, and nothing here knows it.
    import_module("tasks.flow").send(context, dispatch)


def get_context() -> Context:
    """Return the context of this process, created on first use."""
    pid = os.getpid()
    context = _contexts.get(pid)
    if context is None:
        with _lock:
            context = _contexts.setdefault(pid, new_context(get_settings()))
    return context


def forget_context() -> None:
    """Drop this process's context, so that the next use creates another: after a fork or a change of settings. A
    parent's connections stay open there."""
    global _lock  # noqa: PLW0603  # a lock that was held at the fork would never be released
    _lock = Lock()
    own = _contexts.pop(os.getpid(), None)
    if own is not None and "db" in vars(own):
        own.db.dispose()
    for inherited in _contexts.values():
        if "db" in vars(inherited):
            inherited.db.dispose(close=False)
    _contexts.clear()
