"""The context of a process: settings, gates, database, Redis. `pipeline.process` holds this process's own."""

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
    """Settings and the objects made from them: gates, connections."""

    settings: Settings
    flows: Callable[[], Iterable[Declaration]] = field(repr=False)
    """Each flow's declaration of its queues and live settings. Called on the first use of `gates`."""
    launcher: Callable[["Context", Dispatch], object] | None = field(default=None, repr=False, compare=False)
    """Sends the dispatches of transactions after their commit. None: the sweeper finds what is due."""

    def __post_init__(self) -> None:
        # An existing folder may have wider permissions, as older versions left it.
        privacy.close(self.settings.data_dir, self.settings.private_names)

    @cached_property
    def db(self) -> Database:
        url, threads = self.settings.effective_database_url, self.settings.ai_concurrency
        return Database(url, threads, self.settings, self._send)

    def _send(self, dispatch: Dispatch) -> None:
        if self.launcher is not None and self.online:
            self.launcher(self, dispatch)

    def gates_changed(self, queues: Iterable[str]) -> None:
        """Notify workers and flows, if there is a launcher, that the gates of these queues may have opened or closed.

        A message only speeds things up: a lost one costs at most the time until the next sweep.
        """
        if changed := dict.fromkeys(queues):
            self._send(Dispatch(gates=changed))

    @cached_property
    def gates(self) -> GateRegistry:
        """The registry of gated queues."""
        return GateRegistry(self.flows(), self.settings)

    @property
    def online(self) -> bool:
        """False if the embedded Redis is down: nothing can be notified, and the next stack finds the rows. Always True
        with another Redis, even if it is unreachable."""
        return not self.settings.embedded_redis or _listens(self.settings.redis)

    @cached_property
    def cache(self) -> dict[Any, Any]:
        """Objects that other modules create once for this context, by keys of their own."""
        return {}

    @cached_property
    def redis(self) -> "Redis":
        return connect(self.settings.effective_redis_url)


def _listens(where: RedisUrl) -> bool:
    # The file alone proves nothing: a killed Redis leaves it behind, and clients retry for seconds.
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        try:
            if where.private:
                private_socket.check(where.path)
            client.connect(where.path)
        except (OSError, private_socket.ForeignSocket):
            return False
    return True
