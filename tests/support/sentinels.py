"""Redis servers watched by sentinels that fail over within seconds: real processes, with passwords of their own."""

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from pipeline.standalone.redis_server import find_server
from tests.support.redis_server import RedisServer, free_port
from tests.support.waiting import wait_until

NAME = "penstock-master"
PASSWORD, SENTINEL_PASSWORD = "s3cret/of@the#master", "another:secret?of;sentinels"
_REPLICA = ("replicator", "third-secret")
"""The user with which a replica connects to its master."""
_COUNT, _QUORUM = 3, 2
_DOWN_AFTER_MS = 1000
"""Sentinels choose no replica that lost its master ten times as long ago."""
READY_S = 60


def sentinel_url(*ports: int, options: str = "") -> str:
    """Return the URL of these sentinels."""
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    password, sentinels = (quote(secret, safe="") for secret in (PASSWORD, SENTINEL_PASSWORD))
    return f"sentinel://:{password}@{hosts}/0?master={NAME}&sentinel_password={sentinels}{options}"


class Sentinel:
    """One sentinel. A context manager: leaving it kills the sentinel."""

    def __init__(self, folder: Path, master_port: int, quorum: int = 1) -> None:
        self._folder = folder
        self._master_port = master_port
        self._quorum = quorum
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    def start(self) -> None:
        """Start the sentinel. Returns at once: `state` is None until it answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"sentinel-{self.port}.conf"
        path.write_text(f"""
            port {self.port}
            bind 127.0.0.1
            dir {self._folder}
            requirepass {SENTINEL_PASSWORD}
            sentinel monitor {NAME} 127.0.0.1 {self._master_port} {self._quorum}
            sentinel auth-pass {NAME} {PASSWORD}
            sentinel down-after-milliseconds {NAME} {_DOWN_AFTER_MS}
            sentinel failover-timeout {NAME} 3000
        """)
        with path.with_suffix(".log").open("ab") as log:
            command = [find_server(), str(path), "--sentinel"]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def state(self) -> dict[str, Any] | None:
        """Return the sentinel's state of the master."""
        with self._client() as client, suppress(RedisError):
            return dict(client.sentinel_masters()[NAME])
        return None

    def _client(self) -> "Redis":
        return Redis(
            port=self.port,
            password=SENTINEL_PASSWORD,
            decode_responses=True,
            socket_timeout=5,
            retry=Retry(NoBackoff(), 0),
        )

    def point_to(self, master_port: int) -> None:
        """Name another server as the master, as after a failover."""
        with self._client() as client:
            client.sentinel_remove(NAME)
            client.sentinel_monitor(NAME, "127.0.0.1", master_port, self._quorum)
            client.sentinel_set(NAME, "auth-pass", PASSWORD)

    def kill(self) -> None:
        """SIGKILL; harmless if it is down."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        wait_until(self.state, READY_S, "the sentinel answers")
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Sentinels:
    """A master with a replica, and three sentinels. A context manager: leaving it kills everything."""

    def __init__(self, folder: Path) -> None:
        name, password = _REPLICA
        options = ["--masteruser", name, "--masterauth", password]
        options += ["--user", name, "on", f">{password}", "+psync", "+replconf", "+ping"]
        self.master = RedisServer(folder / "a", *options, password=PASSWORD)
        follows = ["--replicaof", "127.0.0.1", str(self.master.port)]
        self.replica = RedisServer(folder / "b", *options, *follows, password=PASSWORD)
        self.sentinels = [Sentinel(folder, self.master.port, _QUORUM) for _ in range(_COUNT)]

    @property
    def url(self) -> str:
        return sentinel_url(*(sentinel.port for sentinel in self.sentinels))

    def start(self) -> None:
        """Start all servers. Returns when the sentinels know one another and the replica follows its master."""
        servers: list[RedisServer | Sentinel] = [self.master, self.replica, *self.sentinels]
        for server in servers:
            server.start()
        wait_until(self._are_ready, READY_S, "the sentinels know one another and the replica", last=self._states)

    def _are_ready(self) -> bool:
        with self.replica.client() as replica, suppress(RedisError):
            others = {"num-other-sentinels": _COUNT - 1, "num-slaves": 1}
            known = all(state and others.items() <= state.items() for state in self._states())
            return known and replica.info("replication").get("master_link_status") == "up"
        return False

    def _states(self) -> list[dict[str, Any] | None]:
        return [sentinel.state() for sentinel in self.sentinels]

    def cut_off_replica(self) -> None:
        """Stop replication, so that the master confirms writes that no replica has."""
        with self.master.client() as master:
            master.execute_command("ACL", "SETUSER", _REPLICA[0], "off")
            master.execute_command("CLIENT", "KILL", "TYPE", "replica")

    def wait_for_failover(self) -> None:
        """Wait until every living sentinel names the replica as the new master."""
        wait_until(
            lambda: {state["port"] for state in self._states() if state} == {self.replica.port},
            READY_S,
            "the replica is the master",
            last=self._states,
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        servers: list[RedisServer | Sentinel] = [*self.sentinels, self.master, self.replica]
        for server in servers:
            server.kill()
