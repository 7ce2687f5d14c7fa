"""Two instances of the gateway, a node at one and a session at the other, and a job that goes through.

    python examples/two_gateways.py                                          # with a Redis of its own
    PENSTOCK_TEST_REDIS_URL=redis://host:6379/9 python examples/two_gateways.py
    PENSTOCK_TEST_REDIS_CLUSTER_URLS=redis://a:6379,redis://b:6379 python examples/two_gateways.py

All processes are started as in production, in a folder that is removed at the end. Exits with 0 if the answer came.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from redis import Redis, RedisError
from redis.cluster import RedisCluster

from pipeline.engine.connection import connect
from pipeline.nodes.client import ask
from pipeline.standalone.redis_server import find_server

PENSTOCK = [sys.executable, "-m", "penstock_entry"]
START_S = 120.0
PREFIX = f"two-gateways:{os.getpid()}"


class Program:
    """A running command, whose output is shown line by line behind its name."""

    def __init__(self, name: str, env: dict[str, str], *arguments: str) -> None:
        self._process = subprocess.Popen(
            [*PENSTOCK, *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.name = name
        self._lines: list[str] = []
        self._came = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            print(f"{self.name:9} | {line.rstrip()}", flush=True)
            with self._came:
                self._lines.append(line)
                self._came.notify_all()
        with self._came:
            self._lines.append("")
            self._came.notify_all()

    def said(self, pattern: str) -> str:
        """The first text of its output that matches; exits if it ends before."""
        deadline = time.monotonic() + START_S
        with self._came:
            while not (found := re.search(pattern, "".join(self._lines))):
                if self._lines[-1:] == [""] or not self._came.wait(deadline - time.monotonic()):
                    sys.exit(f"{self.name} did not say {pattern!r}")
        return found[0]

    def end(self) -> None:
        """SIGTERM, and wait."""
        self._process.terminate()
        self._process.wait(START_S)


@contextmanager
def own_redis(folder: Path) -> Iterator[str]:
    """A server on a socket in this folder; its URL."""
    socket = folder / "redis.sock"
    command = [find_server(), "--port", "0", "--unixsocket", str(socket), "--dir", str(folder), "--loglevel", "warning"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server, Redis(unix_socket_path=str(socket)) as client:
        try:
            deadline = time.monotonic() + START_S
            while True:
                try:
                    client.ping()
                    break
                except RedisError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
            yield f"unix://{socket}"
        finally:
            server.terminate()


def environment(folder: Path, redis_url: str, cluster_urls: str) -> dict[str, str]:
    """The environment without the caller's own settings, and with the named Redis."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    env |= {"PENSTOCK_DATA_DIR": str(folder / "data"), "PENSTOCK_REDIS_URL": redis_url, "NO_COLOR": "1"}
    if cluster_urls:
        env["PENSTOCK_GATEWAY__REDIS__MODE"] = "cluster"
        env["PENSTOCK_GATEWAY__REDIS__CLUSTER_URLS"] = json.dumps([url.strip() for url in cluster_urls.split(",")])
    env["PENSTOCK_GATEWAY__REDIS__KEY_PREFIX"] = PREFIX  # other gateways may use the same Redis
    return env


def remove_keys(redis_url: str, cluster_urls: str) -> None:
    """Remove this example's keys from a Redis that others use."""
    with (
        RedisCluster.from_url(cluster_urls.split(",", maxsplit=1)[0]) if cluster_urls else connect(redis_url) as client
    ):
        for key in client.scan_iter(f"{PREFIX}:*"):
            client.delete(key)


def told(env: dict[str, str], *arguments: str) -> str:
    """What a command prints; exits if it fails."""
    done = subprocess.run([*PENSTOCK, *arguments], env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"penstock {' '.join(arguments)}: exit code {done.returncode}")
    return done.stdout.strip()


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="two-")))
        redis_url = os.environ.get("PENSTOCK_TEST_REDIS_URL") or stack.enter_context(own_redis(folder))
        cluster_urls = os.environ.get("PENSTOCK_TEST_REDIS_CLUSTER_URLS", "")
        stack.callback(remove_keys, redis_url, cluster_urls)
        env = environment(folder, redis_url, cluster_urls)
        told(env, "migrate")
        for_node = told(env, "nodes", "tokens", "create", "node", "--kind", "node")
        for_session = told(env, "nodes", "tokens", "create", "session", "--kind", "session")

        urls = {}
        for name in ("gateway-a", "gateway-b"):
            own = {**env, "PENSTOCK_GATEWAY__INSTANCE_ID": name}
            program = Program(name, own, "gateway", "--port", "0")
            stack.callback(program.end)
            urls[name] = program.said(r"ws://127\.0\.0\.1:\d+")
        own = {**env, "PENSTOCK_NODE_TOKEN": for_node, "PENSTOCK_DATA_DIR": str(folder / "node")}
        node = Program("node", own, "node", "--gateway", urls["gateway-a"], "--provider", "local", "--id", "node-1")
        stack.callback(node.end)

        # It waits until a node offers this.
        reply = ask(urls["gateway-b"], for_session, "embeddings", body={"texts": ["Say hello"]}, timeout_s=START_S)
        job = json.loads(told(env, "jobs", "list", "--json"))[0]
        [listed] = json.loads(told(env, "nodes", "list", "--json"))
        print(f"node      : {listed['node_id']}, connected to {listed['instance_id']}")
        print(f"session   : connected to {job['instance_id']}")
        print(f"job       : {job['job_id']} {job['state']}, {job['outcome']}, attempt {reply.attempt}")
        print(f"answer    : of {reply.node_id}, a vector of {len(reply.result['vectors'][0])} numbers")
        if (listed["instance_id"], job["instance_id"]) != ("gateway-a", "gateway-b"):
            sys.exit("node and session are not at different instances")


if __name__ == "__main__":
    main()
