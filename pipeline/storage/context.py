"""What a process works with: settings, database, Redis. Made on first use, and again after a fork."""

import os
import socket
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

from redis import Redis

from pipeline.engine import privacy, private_socket
from pipeline.engine.connection import connect
from pipeline.settings import Settings, get_settings
from pipeline.settings.redis_url import RedisUrl
from pipeline.storage.database import Database


@dataclass(frozen=True)
class Context:
    """Settings and the connections made from them."""

    settings: Settings

    def __post_init__(self) -> None:
        # A folder that was there before, or was made by a version that did not look.
        privacy.close(self.settings.data_dir, self.settings.private_names)

    @cached_property
    def db(self) -> Database:
        return Database(self.settings.effective_database_url, threads=self.settings.ai_concurrency)

    @property
    def online(self) -> bool:
        """False if the embedded Redis is down: there is nobody to notify, and the next stack finds the rows."""
        return not self.settings.embedded_redis or _listens(self.settings.redis)

    @cached_property
    def made(self) -> dict[Any, Any]:
        """What others make from this context once and keep with it, by a key of theirs."""
        return {}

    @cached_property
    def redis(self) -> "Redis":
        return connect(self.settings.effective_redis_url)


def _listens(where: RedisUrl) -> bool:
    # The socket alone proves nothing: a Redis that was killed leaves it behind, and clients try for seconds.
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        try:
            if where.private:
                private_socket.check(where.path)
            client.connect(where.path)
        except (OSError, private_socket.ForeignSocket):
            return False
    return True


_lock = Lock()
_contexts: dict[int, Context] = {}


def get_context() -> Context:
    """The context of this process."""
    pid = os.getpid()
    context = _contexts.get(pid)
    if context is None:
        with _lock:
            context = _contexts.setdefault(pid, Context(get_settings()))
    return context


def forget_context() -> None:
    """Start afresh, after a fork or a change of settings. What a parent process holds stays open there."""
    global _lock  # noqa: PLW0603  # a lock that was held at the fork would never be released
    _lock = Lock()
    own = _contexts.pop(os.getpid(), None)
    if own is not None and "db" in vars(own):
        own.db.dispose()
    for inherited in _contexts.values():
        if "db" in vars(inherited):
            inherited.db.dispose(close=False)
    _contexts.clear()
