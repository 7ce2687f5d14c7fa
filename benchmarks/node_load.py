"""Instances of the gateway under load: the time of a job, jobs a second, the cost of idle nodes, and recovery."""

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median
from typing import cast

import psutil

from benchmarks.node_peer import Entries
from benchmarks.suite import Figures
from benchmarks.support import (
    BenchmarkError,
    is_ready,
    penstock,
    percentile,
    process,
    progress,
    use_settings,
    wait_until,
)
from pipeline.engine.connection import connect_async
from pipeline.nodes import tokens
from pipeline.nodes.client import Session
from pipeline.nodes.tokens import TokenKind
from pipeline.process import get_context
from pipeline.settings import get_settings
from pipeline.storage.schema import migrate
from tests.support.redis_server import RedisServer, free_port

AT_ONCE = 32
SLOTS = 64


@dataclass
class Fleet:
    """Instances of the gateway over one Redis."""

    folder: Path
    redis_url: str
    node_token: str
    session_token: str
    processes: ExitStack
    instances: dict[str, tuple[str, "subprocess.Popen[bytes]"]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)

    def instance(self, name: str) -> str:
        """Start an instance; return its address."""
        port = free_port()
        env = {"PENSTOCK_GATEWAY__INSTANCE_ID": name}
        command = [*penstock(), "gateway", "--port", str(port)]
        running = self.processes.enter_context(process(command, self.folder / f"{name}.log", env=env))
        wait_until(f"instance {name}", lambda: is_ready(port), 30)
        self.instances[name] = (f"ws://127.0.0.1:{port}", running)
        return f"ws://127.0.0.1:{port}"

    def node(self, urls: Sequence[str], nodes: int = 1) -> None:
        """Start a process with nodes that answer at once."""
        number = next(self._numbers)
        command = [
            sys.executable,
            "-m",
            "benchmarks.node_peer",
            ",".join(urls),
            f"peer{number}",
            str(nodes),
            str(SLOTS),
        ]
        env = {"PENSTOCK_NODE_TOKEN": self.node_token}
        self.processes.enter_context(process(command, self.folder / f"node-{number}.log", env=env))

    def session(self, *urls: str) -> Session:
        return Session(list(urls), self.session_token)


@contextmanager
def fleet() -> Iterator[Fleet]:
    """Run a Redis and a database with tokens, without an instance so far."""
    folder = get_settings().data_dir
    with RedisServer(folder / "redis") as server, ExitStack() as running:
        server.start()
        use_settings(PENSTOCK_REDIS_URL=server.url)
        context = get_context()
        migrate(context.db)
        node, session = (tokens.create(context, kind, kind)[0] for kind in (TokenKind.NODE, TokenKind.SESSION))
        yield Fleet(folder, server.url, node, session, running)


def measure_latency(jobs: int = 400) -> Figures:
    """Measure the time of a job in an idle fleet, one job after another. The node answers at once."""
    with fleet() as there:
        a, b = there.instance("a"), there.instance("b")
        there.node([a])
        progress("jobs one after another")
        same = asyncio.run(_one_by_one(there.session(a), jobs))
        cross = asyncio.run(_one_by_one(there.session(b), jobs))
    return {
        "same_instance_p50_ms": round(median(same) * 1000, 2),
        "cross_instance_p50_ms": round(median(cross) * 1000, 2),
        "p99 of both, ms": f"{percentile(same, 0.99) * 1000:.1f}, {percentile(cross, 0.99) * 1000:.1f}",
    }


def measure_throughput(seconds: float = 8.0) -> Figures:
    """Measure jobs a second, beside bare round trips by Redis Streams."""
    with fleet() as there:
        a, b = there.instance("a"), there.instance("b")
        there.node([a])
        progress("one instance")
        rate = asyncio.run(_at_once([there.session(a)], seconds))
        there.node([b])
        progress("two instances")
        two = asyncio.run(_at_once([there.session(a), there.session(b)], seconds))
        progress("bare Redis Streams")
        bare = _streams(there, seconds)
    return {
        "jobs_per_s_1": round(rate),
        "jobs_per_s_2": round(two),
        "streams_ratio": round(rate / bare, 3),
        "bare round trips a second": round(bare),
    }


def measure_idle_nodes(nodes: int = 1000, settled_s: float = 10.0) -> Figures:
    """Measure the memory and CPU of an instance with many idle nodes."""
    with fleet() as there:
        a = there.instance("a")
        instance = psutil.Process(there.instances["a"][1].pid)
        before = instance.memory_info().rss
        there.node([a], nodes)
        progress(f"{nodes} nodes connect")
        wait_until("all nodes are connected", lambda: _connected(a) == nodes, 50, every_s=0.5)
        time.sleep(settled_s)  # several rounds of all periodic work
        if (connected := _connected(a)) != nodes:
            raise BenchmarkError(f"{connected} of {nodes} nodes are still connected")
        cpu = instance.cpu_percent(3.0)
        after = instance.memory_info().rss
    return {
        "gateway_1000_nodes_mb": round(after / 1e6, 1),
        "the same without nodes, MB": round(before / 1e6, 1),
        "CPU with 1,000 idle nodes, % of a core": round(cpu, 1),
    }


def measure_recovery(kills: int = 3) -> Figures:
    """Kill the instance of both node and session; measure the time until the next answer."""
    with fleet() as there:
        recoveries_s = []
        for number in range(kills):
            progress(f"death {number + 1} of {kills}")
            a, b = there.instance(f"a{number}"), there.instance(f"b{number}")
            there.node([a, b])
            recoveries_s.append(asyncio.run(_after_death(there, f"a{number}", a, b)))
            there.instances[f"b{number}"][1].kill()
    return {
        "recovery_s": round(max(recoveries_s), 2),
        "each, s": " ".join(f"{recovery_s:.2f}" for recovery_s in recoveries_s),
    }


async def _after_death(there: Fleet, name: str, *urls: str) -> float:
    async with there.session(*urls) as session:
        await _job(session)
        there.instances[name][1].send_signal(signal.SIGKILL)
        started = time.monotonic()
        await _job(session)
        return time.monotonic() - started


async def _job(session: Session) -> None:
    await session.request("text", "m", {"prompt": "Nothing."}, timeout_s=60)


async def _one_by_one(session: Session, jobs: int) -> list[float]:
    took = []
    async with session:
        for _ in range(20):
            await _job(session)
        for _ in range(jobs):
            started = time.monotonic()
            await _job(session)
            took.append(time.monotonic() - started)
    return took


async def _at_once(sessions: Sequence[Session], seconds: float) -> float:
    done = 0

    async def ask(session: Session, until: float) -> None:
        nonlocal done
        while time.monotonic() < until:
            await _job(session)
            done += 1

    for session in sessions:
        await _job(session)
    started = time.monotonic()
    each = AT_ONCE // len(sessions)
    await asyncio.gather(*(ask(session, started + seconds) for session in sessions for _ in range(each)))
    rate = done / (time.monotonic() - started)
    for session in sessions:
        await session.close()
    return rate


def _streams(there: Fleet, seconds: float) -> float:
    """Exchange requests and answers by two streams: the least that any gateway over Redis Streams would pay."""
    command = [sys.executable, "-m", "benchmarks.node_peer", "--streams", there.redis_url]
    with process(command, there.folder / "streams.log"):
        return asyncio.run(_round_trips(there.redis_url, seconds))


async def _round_trips(url: str, seconds: float) -> float:
    redis = connect_async(url)
    answered: dict[bytes, asyncio.Event] = {}
    done, over = 0, False

    async def read() -> None:
        last: bytes | str = "0"
        while not over:
            entries_by_stream = await redis.xread({"answers": last}, count=AT_ONCE, block=200)
            for _, entries in cast("Entries", entries_by_stream or []):
                for entry, fields in entries:
                    last = entry
                    answered.pop(fields[b"id"]).set()

    async def ask(number: int, until: float) -> None:
        nonlocal done
        for each in count():
            if time.monotonic() > until:
                return
            name = f"{number}-{each}".encode()
            answered[name] = event = asyncio.Event()
            await redis.xadd("requests", {"id": name, "body": json.dumps({"prompt": "Nothing."})})
            await event.wait()
            done += 1

    reader = asyncio.create_task(read())
    await redis.ping()
    started = time.monotonic()
    await asyncio.gather(*(ask(number, started + seconds) for number in range(AT_ONCE)))
    rate = done / (time.monotonic() - started)
    over = True
    await reader
    await redis.aclose()
    return rate


def _connected(url: str) -> int:
    address = url.replace("ws://", "http://") + "/metrics"
    with urllib.request.urlopen(address, timeout=5) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith('penstock_gateway_connections{kind="node"}'):
                return int(float(line.rpartition(" ")[2]))
    return 0
