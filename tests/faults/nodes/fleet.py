"""Gateways and nodes as processes, requests to them, and the invariants afterwards."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import URLError
from urllib.request import urlopen

from pipeline.nodes.job import Job, JobState
from pipeline.nodes.settings import GatewaySettings
from pipeline.nodes.state import upkeep
from pipeline.nodes.state.instances import Instances
from pipeline.nodes.state.jobs import Jobs
from pipeline.nodes.state.queue import Waiting
from pipeline.nodes.state.snapshots import Snapshots
from pipeline.nodes.state.store import Store
from pipeline.storage.context import Context
from tests.support.counting_node import TOKEN
from tests.support.node_load import Load
from tests.support.redis_server import free_port
from tests.support.stack import Stack
from tests.support.waiting import wait_until

Result = TypeVar("Result")
RUN_S = float(os.environ.get("PENSTOCK_FAULTS_S") or 0)
"""The least duration of an endurance test: `PENSTOCK_FAULTS_S=60`. In CI it ends after enough faults. Read at import,
since tests run without the caller's settings."""
START_S = 60
UPKEEP_S = 1
"""The interval of beat's upkeep in these tests."""
QUIET_S = 40
"""A time after which upkeep has released unused reservations."""
QUICK = {
    "HEARTBEAT_MS": "500",
    "OWNER_TTL_SECONDS": "1.5",
    "STREAM_BLOCK_MS": "100",
    "COOL_DOWN_MS": "100",
    "DLQ_MIN_IDLE_MS": "1000",
    "NODE_SNAPSHOT__PRESENCE_TTL_SECONDS": "2",
    "NODE_SNAPSHOT__REFRESH_INTERVAL_MS": "200",
}
"""Settings of the gateway with short times."""


@dataclass
class Fleet:
    """Instances by name, each with a fixed port, and nodes by name."""

    stack: Stack
    context: Context
    folder: Path
    node_token: str
    session_token: str
    ports: dict[str, int] = field(default_factory=dict)
    _tended: float = 0.0

    # Processes

    def start(self, *names: str, **settings: str) -> None:
        """Start instances, and wait until they serve."""
        for name in names:
            own = {"INSTANCE_ID": name, "PORT": str(self.ports.setdefault(name, free_port())), **QUICK, **settings}
            variables = {f"PENSTOCK_GATEWAY__{key}": value for key, value in own.items()}
            self.stack.run(name, "tests.support.gateway_process", **variables)
        for name in names:
            wait_until(lambda name=name: self._serves(name), START_S, f"instance {name} serves")

    def _serves(self, name: str) -> bool:
        with suppress(URLError, OSError), urlopen(f"http://127.0.0.1:{self.ports[name]}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def node(self, name: str, urls: str = "", slots: int = 4) -> None:
        """Start a node that connects to any of the instances, or to these addresses."""
        arguments = (urls or ",".join(self.urls), name, str(self._journal(name)), "--slots", str(slots))
        self.stack.run(name, "tests.support.counting_node", *arguments, **{TOKEN: self.node_token})

    def _journal(self, name: str) -> Path:
        return self.folder / f"{name}.journal"

    @property
    def urls(self) -> list[str]:
        return [f"ws://127.0.0.1:{port}" for port in self.ports.values()]

    def load(self, *urls: str, **how: Any) -> Load:
        """Send requests as long as the `with` block lasts."""
        return Load(urls or self.urls, self.session_token, **{"work_s": 0.05, **how})

    # Journals and state

    def journal(self, event: str) -> list[str]:
        """Return the journal entries of all nodes that begin with this word."""
        lines = [line for path in self.folder.glob("*.journal") for line in path.read_text().splitlines()]
        return [rest for word, _, rest in (line.partition(" ") for line in lines) if word == event]

    def ask_state(self, ask: Callable[[Store], Awaitable[Result]]) -> Result:
        """Read the state in Redis."""

        async def read() -> Result:
            async with Store(GatewaySettings(), self.context.settings.effective_redis_url) as store:
                return await ask(store)

        return asyncio.run(read())

    def jobs(self) -> dict[str, Job]:
        """Return all jobs, by the request id of their session."""
        all_jobs = self.ask_state(lambda store: Jobs(store).list(limit=100_000))
        assert len({job.request_key for job in all_jobs}) == len(all_jobs), "a request is one job"
        return {job.request_key.partition(":")[2]: job for job in all_jobs}

    def living(self) -> set[str]:
        """Return the living instances."""
        return set(self.ask_state(lambda store: Instances(store).living()))

    def nodes(self) -> set[str]:
        """Return the connected nodes."""
        return {node.node_id for node in self.ask_state(lambda store: Snapshots(store).all())}

    def reservations(self) -> list[str]:
        """Return the held slots."""
        return [str(key) for key in self.context.redis.scan_iter("penstock:gateway:v1:nodes:*:reserved")]

    def describe(self) -> str:
        """Describe the state of Redis, for the report of a failed test."""

        async def read(store: Store) -> list[object]:
            instances, nodes = await Instances(store).living(), await Snapshots(store).listed()
            jobs, waiting = await Jobs(store).list(limit=100_000), await Waiting(store).pools()
            return [*self._open(jobs), waiting, instances, *nodes]

        avoided = {key: self.context.redis.hgetall(key) for key in self.context.redis.scan_iter("*:avoid")}
        return "\n".join(map(str, [*self.ask_state(read), self.reservations(), avoided]))

    def wait_until_quiet(self) -> None:
        """Wait until every job is released and no slot is held, and run the upkeep like beat."""
        wait_until(self._is_quiet, QUIET_S, "all jobs and slots are released", last=self.describe)

    def _is_quiet(self) -> bool:
        if time.monotonic() > self._tended + UPKEEP_S:
            self._tended = time.monotonic()
            self.ask_state(upkeep.tend)
        return not self.reservations() and not self._open(self.jobs().values())

    @staticmethod
    def _open(jobs: Iterable[Job]) -> list[Job]:
        return [job for job in jobs if job.state is not JobState.RELEASED]

    def assert_exactly_once(self, load: Load) -> None:
        """Check that every request got its own answer once, every job ended once, and no slot is held."""
        assert not load.failed, load.failed
        assert load.answers == Counter(load.asked), (
            load.answers - Counter(load.asked),
            Counter(load.asked) - load.answers,
        )
        assert {request: reply.result["text"] for request, reply in load.answered.items()} == {
            request: request for request in load.asked
        }
        self.wait_until_quiet()
        jobs = self.jobs()
        assert jobs.keys() == load.asked
        assert {job.outcome for job in jobs.values()} == {"ok"}
        # If the answer to a result is lost, the node sends the result again, and gets the same answer.
        recorded = Counter(job_id for job_id, _ in {tuple(line.split()) for line in self.journal("taken")})
        assert set(recorded.values()) == {1}, "no job ended twice"
        started = Counter(self.journal("began"))
        wasted = {
            request: (started[request], job.attempt) for request, job in jobs.items() if started[request] > job.attempt
        }
        assert not wasted, "no attempt was done twice"
