"""What a process works with: settings, gates, database, Redis. `pipeline.process` has the one of this process."""

import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from redis import Redis

from pipeline.engine import privacy, private_socket
from pipeline.engine.connection import connect
from pipeline.engine.gate_registry import Declaration, GateRegistry
from pipeline.engine.transaction import Dispatch
from pipeline.settings import Settings
from pipeline.settings.redis_url import RedisUrl
from pipeline.storage.database import Database


@dataclass(frozen=True)
class Context:
    """Settings and what is made from them: gates, connections."""

    settings: Settings
    flows: Callable[[], Iterable[Declaration]] = field(repr=False)
    """What each flow declares of its queues and live settings. Asked when somebody wants to know of gates."""
    launcher: Callable[["Context", Dispatch], object] | None = field(default=None, repr=False, compare=False)
    """Sends what transactions asked for, once they have committed. None: the sweeper finds what is due."""

    def __post_init__(self) -> None:
        # A folder that was there before, or was made by a version that did not look.
        privacy.close(self.settings.data_dir, self.settings.private_names)

    @cached_property
    def db(self) -> Database:
        url, threads = self.settings.effective_database_url, self.settings.ai_concurrency
        return Database(url, threads, self.settings, self._send)

    def _send(self, dispatch: Dispatch) -> None:
        if self.launcher is not None and self.online:
            self.launcher(self, dispatch)

    def gates_changed(self, queues: Iterable[str]) -> None:
        """Say that the gates of these queues may have opened or closed.

        A message is a nudge, never the truth: a lost one costs at most the time until the next sweep.
        """
        if found := dict.fromkeys(queues):
            self._send(Dispatch(gates=found))

    @cached_property
    def gates(self) -> GateRegistry:
        """Which queues have gates."""
        return GateRegistry(self.flows(), self.settings)

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
