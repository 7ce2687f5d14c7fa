"""The commands of deploy/acceptance/docker-compose.yml without Docker: they join three masters to a cluster."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis import Redis, RedisError
from redis.cluster import RedisCluster

from pipeline.standalone.redis_server import find_server
from tests.integration.deploy.test_compose_services import program
from tests.support.leftovers import short_folder
from tests.support.redis_cluster import _free_port
from tests.support.waiting import wait_until
from tests.unit.repository.test_acceptance import MASTERS, SERVICES

JOIN = [word.replace("$$", "$") for word in SERVICES["join"]["command"]]


@pytest.fixture
def ports() -> Iterator[list[int]]:
    """The ports of three servers that the masters' command has started."""
    with ExitStack() as stack:
        started = []
        for name in MASTERS:
            folder, port = short_folder(), _free_port()
            command = [find_server(), *SERVICES[name]["command"][1:], "--port", str(port), "--bind", "127.0.0.1"]
            server = subprocess.Popen([*command, "--dir", str(folder)], stdout=subprocess.DEVNULL)
            stack.callback(server.wait)
            stack.callback(server.kill)
            started.append(port)
        for port in started:
            wait_until(lambda port=port: answers(port), 60, "the server answers")
        yield started


def answers(port: int) -> bool:
    with Redis(port=port) as client:
        try:
            return bool(client.ping())
        except RedisError:
            return False


def test_three_masters_become_a_cluster_that_a_second_run_does_not_change(tmp_path: Path, ports: list[int]) -> None:
    redis_cli = Path(find_server()).with_name("redis-cli")
    if not redis_cli.exists():
        pytest.skip("no redis-cli beside redis-server")
    # Resolve the names and addresses of Docker's network on this machine.
    address = "; ".join(
        f"s/-h {name}/-h 127.0.0.1 -p {port}/; s/10.0.0.{port}:6379/127.0.0.1:{port}/"
        for name, port in zip(MASTERS, ports, strict=True)
    )
    program(tmp_path / "redis-cli", f'exec {redis_cli} $(echo "$@" | sed "{address}")')
    hosts = "\n".join(f"{name}) echo 10.0.0.{port} {name};;" for name, port in zip(MASTERS, ports, strict=True))
    program(tmp_path / "getent", f"case $2 in\n{hosts}\nesac")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}

    subprocess.run(JOIN, env=environment, check=True, capture_output=True, timeout=120)
    with RedisCluster(port=ports[0], host="127.0.0.1") as client:
        assert len(client.get_primaries()) == 3
        client.mset_nonatomic({f"key-{number}": number for number in range(30)})
        second_run = subprocess.run(JOIN, env=environment, check=True, capture_output=True, text=True, timeout=120)
        assert "--cluster" not in second_run.stdout
        assert client.dbsize(target_nodes=RedisCluster.PRIMARIES) == 30
