"""A real Redis Cluster of three masters on loopback ports, without replicas."""

import random
import socket
from contextlib import suppress
from pathlib import Path
from typing import Self

from redis import RedisError

from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

MASTERS, SLOTS = 3, 16_384
READY_S = 60
_OPTIONS = ("--cluster-enabled", "yes", "--appendonly", "no")


class RedisCluster:
    """The servers of a cluster. A context manager, which kills the servers."""

    def __init__(self, folder: Path) -> None:
        self.servers = [RedisServer(folder / str(number), *_OPTIONS) for number in range(MASTERS)]
        for server in self.servers:
            server.port = _free_port()

    @property
    def urls(self) -> list[str]:
        return [f"redis://127.0.0.1:{server.port}" for server in self.servers]

    def start(self) -> None:
        """Start the servers. Returns when all of them serve all slots."""
        for server in self.servers:
            server.start()
        for number, server in enumerate(self.servers):
            with server.client() as client:
                begin, end = number * SLOTS // MASTERS, (number + 1) * SLOTS // MASTERS
                client.execute_command("CLUSTER", "ADDSLOTS", *range(begin, end))
                # Otherwise the servers would have to negotiate their epochs first.
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                # Introduce each server to each other one, because gossip takes longer.
                for other in self.servers[:number]:
                    client.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port)
        wait_until(lambda: all(map(_serves, self.servers)), READY_S, "the cluster serves all slots")

    def flush(self) -> None:
        """Send FLUSHALL to each server."""
        for server in self.servers:
            server.flush()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.kill()


def _free_port() -> int:
    """Return a free port whose bus port, 10,000 above, is free too. The system assigns neither of them."""
    while True:
        port = random.randrange(12_000, 22_000)
        with socket.socket() as server, socket.socket() as bus, suppress(OSError):
            server.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + 10_000))
            return port


def _serves(server: RedisServer) -> bool:
    with server.client() as client, suppress(RedisError):
        info = str(client.execute_command("CLUSTER", "INFO"))
        known = str(client.execute_command("CLUSTER", "NODES")).count(" connected ")
        return "cluster_state:ok" in info and known == MASTERS
    return False
