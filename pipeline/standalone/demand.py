"""How a command starts the stack of a data folder. Light: the stack and the command import at the same time."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.engine import search_path
from pipeline.reading.sandbox import child_process
from pipeline.settings import Settings
from pipeline.standalone.locks import is_supervised, users_lock

_READERS_S = 5.0
"""How long a server of readers may take to start."""


class Demand:
    """A command's hold, which keeps the stack up, and the supervisor that the command has started."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.log_start = 0
        """The length of the log file before the supervisor wrote to it."""

    def start(self) -> None:
        """Start a supervisor without waiting for it. If another one already runs, the new one exits."""
        with log_file(self.settings).open("ab") as log:
            self.log_start = log.tell()
            self.supervisor = subprocess.Popen(  # noqa: S603  # our own program
                search_path.program("pipeline.standalone.serve"),
                env=search_path.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


@contextmanager
def demand(settings: Settings) -> Iterator[Demand]:
    """Start the stack unless it runs, without waiting for it, and keep it up during the block. `using_stack` waits
    until it is up.

    With the user's own Redis, start nothing.
    """
    demanded = Demand(settings)
    if not settings.embedded_redis:
        yield demanded
        return
    with users_lock(settings) as users:
        users.acquire(shared=True, wait=True)
        starts = not is_supervised(settings)
        if starts:
            demanded.start()
        if settings.readers_socket is not None:
            child_process.use_server(settings.readers_socket, _READERS_S if starts else 0.0)
        yield demanded


def log_file(settings: Settings) -> Path:
    """Return the file to which processes without a terminal write their output."""
    return settings.data_dir / "penstock.log"
