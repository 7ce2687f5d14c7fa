"""A real redis-server on a loopback port, as durable as the embedded one, that tests may kill and bring back."""

import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Self

from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from pipeline.standalone.redis_server import find_server
from tests.support.waiting import wait_until

START_S = 120


class RedisServer:
    """One server on one port, for as long as the object lives. A context manager: leaving it kills the server."""

    def __init__(self, folder: Path, *options: str, password: str = "") -> None:
        """`options`: further options of its command line."""
        self._folder = folder
        self._options = [*options, *(["--requirepass", password] if password else [])]
        self._password = password
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server with its stored data. Returns when it answers. Harmless if it is up."""
        if self.running:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(self.answers, START_S, "Redis answers")

    def _command(self) -> list[str]:
        return [
            find_server(),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(self._folder),
            "--appendonly",
            "yes",
            "--appendfsync",
            "everysec",
            "--save",
            "",
            "--maxmemory-policy",
            "noeviction",
            "--daemonize",
            "no",
            "--loglevel",
            "warning",
            *self._options,
        ]

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def answers(self) -> bool:
        """Return whether the server has loaded its data and serves."""
        with self.client() as client:
            try:
                return bool(client.ping())
            except RedisError:
                return False

    def client(self) -> "Redis":
        """Return a client that fails at once. Use it as a context manager."""
        retry = Retry(NoBackoff(), 0)
        return Redis(
            port=self.port, password=self._password or None, decode_responses=True, socket_timeout=5, retry=retry
        )

    def kill(self) -> None:
        """SIGKILL; harmless if it is down."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def fall_silent(self) -> None:
        """SIGSTOP: connections get no answer, as if the host had lost its power. `kill` ends it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def lose_data(self) -> None:
        """Remove the stored data of a stopped server."""
        assert not self.running, "kill it first"
        shutil.rmtree(self._folder)

    def limit_memory(self, octets: int) -> None:
        """Refuse writes beyond this many bytes; 0: no limit."""
        with self.client() as client:
            client.config_set("maxmemory", octets)

    def flush(self) -> None:
        """FLUSHALL."""
        with self.client() as client:
            client.flushall()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
