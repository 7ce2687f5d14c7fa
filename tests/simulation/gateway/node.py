"""A node that misbehaves: it answers late, twice, not at all, or for jobs that it never had."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.nodes.protocol import (
    MODEL_NOT_AVAILABLE,
    NODE_BUSY,
    Capability,
    HeldJob,
    JobAck,
    JobError,
    JobStarted,
    NodeHeartbeat,
    NodePartial,
    NodeRegister,
    NodeResult,
    Offer,
)
from tests.simulation.gateway.clients import Client
from tests.simulation.gateway.loop import Host

if TYPE_CHECKING:
    from tests.simulation.gateway.fleet import Fleet

Attempt = tuple[str, int]


@dataclass(frozen=True)
class Manners:
    """How a node behaves, as likelihoods for each job."""

    acknowledges: bool = True
    starts: bool = True
    drops: float = 0.0
    slow: float = 0.0
    """The node exceeds the time limit."""
    twice: float = 0.0
    refuses: float = 0.0
    fails: float = 0.0
    deaf: float = 0.0
    """The node continues a cancelled job."""
    lies: bool = False
    forgets: float = 0.0
    """The node reconnects without its jobs."""


class Node(Client):
    """A node. Its process may die, and another one starts under its name."""

    path = "node"

    def __init__(self, fleet: "Fleet", name: str, slots: int, models: tuple[str, ...], manners: Manners) -> None:
        super().__init__(fleet, name, f"token-{name}")
        self.slots, self.models, self.manners = slots, models, manners
        self.working: dict[Attempt, asyncio.Task[Any]] = {}
        self.results: dict[Attempt, NodeResult] = {}
        """Results without a `result_received`."""
        self._tending: asyncio.Task[Any] | None = None
        self.host.mortal = False

    async def begin(self) -> None:
        if self._chance(self.manners.forgets):
            for task in self.working.values():
                task.cancel()
            self.working.clear()
            self.results.clear()
        held = [HeldJob(job_id=job_id, attempt=attempt) for job_id, attempt in {**self.working, **self.results}]
        if self.manners.lies:
            held += [HeldJob(job_id=job_id, attempt=int(row["attempt"])) for job_id, row in self._some_jobs(2)]
        offer = Offer(capability=Capability.TEXT, models=self.models)
        self.say(NodeRegister(node_id=self.name, slots=self.slots, offers=(offer,), held=tuple(held)))
        if self._tending:
            self._tending.cancel()
        self._tending = self.act(self._tend())

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(0.3)
            self.say(NodeHeartbeat())
            for result in list(self.results.values()):
                self.say(result)
            if self.manners.lies and not self.world.calm:
                self._lie()

    def die(self) -> None:
        """End the process, and start another one later, without any job."""
        self.world.kill(self.host)
        self.cut()
        self.working, self.results = {}, {}
        self.world.later(self.rng.uniform(0.1, 3), self._come_up)

    def _come_up(self) -> None:
        self.host = Host(self.name, mortal=False)
        self._tending = None
        self.live()

    def _chance(self, likely: float) -> bool:
        return self.world.chance(likely)

    # Its jobs

    def hear(self, message: dict[str, Any]) -> None:
        key = (message.get("job_id", ""), message.get("attempt", 0))
        match message["type"]:
            case "job_assign":
                self.world.note("is given", job=key[0][:6], attempt=key[1])
                self.fleet.observer.assigned(self.name, *key)
                if key not in self.working and key not in self.results:
                    self.working[key] = self.act(self._work(key, message))
            case "job_cancel":
                task = self.working.get(key)
                if task and not self._chance(self.manners.deaf):
                    del self.working[key]
                    task.cancel()
            case "result_received":
                self.results.pop(key, None)

    async def _work(self, key: Attempt, message: dict[str, Any]) -> None:
        rng, manners = self.rng, self.manners
        if len(self.working) > self.slots:
            self._done(key, error=JobError(code=NODE_BUSY))
            return
        if self._chance(manners.drops):
            await asyncio.sleep(message["timeout_ms"] / 1000 + 5)
            self.working.pop(key, None)
            return
        await asyncio.sleep(rng.uniform(0, 0.02))
        if manners.acknowledges:
            self.say(JobAck(job_id=key[0], attempt=key[1]))
            await asyncio.sleep(rng.uniform(0, 0.05))
        if self._chance(manners.refuses):
            self._done(key, error=JobError(code=rng.choice((NODE_BUSY, MODEL_NOT_AVAILABLE))))
            return
        if manners.starts:
            self.say(JobStarted(job_id=key[0], attempt=key[1]))
        long_s = message["timeout_ms"] / 1000 * rng.uniform(0.9, 1.5) if self._chance(manners.slow) else 0.4
        for _ in range(rng.choice((0, 0, 1, 2))):
            await asyncio.sleep(rng.uniform(0, long_s / 3))
            self.say(NodePartial(job_id=key[0], attempt=key[1], text="piece"))
        await asyncio.sleep(rng.uniform(long_s / 2, long_s) if long_s > 0.4 else rng.uniform(0, 0.4))
        if self._chance(manners.fails):
            self._done(key, error=JobError(code="failed"))
            return
        nonce = f"n{self.world.number()}n"
        request = message["body"]["request"]
        result = {"request": request, "node": self.name, "attempt": key[1], "nonce": nonce}
        self._done(key, result=result)

    def _done(self, key: Attempt, result: dict[str, Any] | None = None, error: JobError | None = None) -> None:
        self.working.pop(key, None)
        self.results[key] = NodeResult(job_id=key[0], attempt=key[1], result=result, error=error)
        self.world.note("has a result", job=key[0][:6], attempt=key[1], error=error.code if error else "")
        self.say(self.results[key])
        if self._chance(self.manners.twice):
            self.say(self.results[key])

    # Lies

    def _some_jobs(self, count: int) -> list[tuple[str, dict[str, str]]]:
        jobs = sorted(self.fleet.observer.jobs.items())
        return self.rng.sample(jobs, min(count, len(jobs)))

    def _lie(self) -> None:
        for job_id, row in self._some_jobs(1):
            attempt = max(1, int(row["attempt"]) + self.rng.choice((-1, 0, 0, 1)))
            if row.get("node_id") == self.name and row["attempt"] == str(attempt):
                continue  # this would be true
            lie: Any = self.rng.choice((JobAck, JobStarted, NodePartial, NodeResult))
            extras: dict[Any, dict[str, Any]] = {
                NodePartial: {"text": "lie"},
                NodeResult: {"result": {"lie": self.name}},
            }
            self.world.note("lies", job=job_id[:6], attempt=attempt, message=lie.__name__)
            self.say(lie(job_id=job_id, attempt=attempt, **extras.get(lie, {})))
