"""Gateway instances as processes, with nodes, sessions and beat over one Redis, and their faults."""

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from redis import RedisError

from pipeline.nodes.gateway.app import Gateway
from pipeline.nodes.gateway.instance import Instance
from pipeline.nodes.settings import GatewaySettings, NodeSnapshotSettings
from pipeline.nodes.state.jobs import Jobs
from pipeline.nodes.state.keys import Keys
from pipeline.nodes.state.store import Store
from pipeline.nodes.state.upkeep import tend
from tests.simulation.gateway.asker import Asker
from tests.simulation.gateway.invariants import Observer
from tests.simulation.gateway.loop import Host, LoopWorld
from tests.simulation.gateway.node import Manners, Node
from tests.simulation.gateway.redis_client import HostRedis
from tests.simulation.gateway.server import Server
from tests.simulation.gateway.socket import Socket
from tests.simulation.world import Process

SETTLE_S = 90.0
"""The time after the last fault to answer everything and clean up. Includes the lease of a beat that died."""
MODELS = ("a", "b")
_BEAT_S = 2.0


@dataclass(frozen=True)
class Shape:
    """The size and the work of a fleet."""

    gateways: int
    nodes: int
    slots: int
    sessions: int
    requests: int
    faults_s: float
    keeps_id: bool
    """A restarted instance keeps the name of the dead one."""
    manners: Manners
    liars: int


class GatewayHost:
    """A process that runs the real gateway instance."""

    def __init__(self, fleet: "Fleet", name: str) -> None:
        self.fleet, self.name, world = fleet, name, fleet.world
        self.host = Host(f"{name}.{world.number()}", worker=self)
        instance_id = name if fleet.shape.keeps_id else self.host.id
        settings = fleet.settings.model_copy(update={"instance_id": instance_id})
        self.instance: Instance = self.host.context.run(Instance, fleet.context, settings)
        self._endpoints = Gateway(self.instance)
        self._sockets: list[Socket] = []
        world.start(self.host, self.instance.start())

    def connect(self, path: str, token: str) -> Socket:
        socket: Any = Socket(self.fleet.world, token)
        self._sockets.append(socket)
        serve = self._endpoints.node if path == "node" else self._endpoints.session
        self.fleet.world.start(self.host, serve(socket))
        return socket

    def cut(self) -> None:
        for socket in self._sockets:
            socket.cut()

    def stop(self) -> None:
        """Stop the instance in order."""

        async def stop() -> None:
            await self.instance.stop()
            self.fleet.world.kill(self.host)

        self.fleet.world.start(self.host, stop())


class Fleet:
    """The fleet of one seed."""

    def __init__(self, world: LoopWorld, server: Server, shape: Shape) -> None:
        self.world, self.server, self.shape = world, server, shape
        self.settings = GatewaySettings(
            owner_ttl_seconds=2,
            stream_block_ms=1000,
            heartbeat_ms=500,
            attempt_timeout_ms=4000,
            max_attempts=3,
            result_ttl_ms=300_000,
            cool_down_ms=50,
            dlq_min_idle_ms=2000,
            node_snapshot=NodeSnapshotSettings(presence_ttl_seconds=2, refresh_interval_ms=500),
        )
        self.keys = Keys(self.settings.redis.key_prefix)
        self.context: Any = SimpleNamespace(settings=SimpleNamespace(effective_redis_url=""))
        self.observer = Observer(self)
        server.probes, server.observe = self.observer.probes, self.observer.observe
        self.gateways: list[GatewayHost] = []
        self.nodes: dict[str, Node] = {}
        self.askers: list[Asker] = []
        self.beat = self.rogue = Host("nobody")
        world.on_kill = self._killed

    @property
    def hosts(self) -> list[Host]:
        return [gateway.host for gateway in self.gateways]

    def some_gateway(self) -> GatewayHost | None:
        living = [gateway for gateway in self.gateways if gateway.host.alive and not gateway.instance.ending]
        return self.world.rng.choice(living) if living else None

    # Start

    def begin(self) -> None:
        """Start all processes, and let sessions send requests."""
        world, shape, rng = self.world, self.shape, self.world.rng
        self.gateways = [GatewayHost(self, f"g{number}") for number in range(shape.gateways)]
        for number in range(shape.nodes):
            manners = Manners(lies=True) if number < shape.liars else shape.manners
            models = rng.choice((MODELS, MODELS, MODELS[:1])) if number else MODELS
            name = f"node{number}"
            self.nodes[name] = Node(self, name, rng.randint(1, shape.slots), models, manners)
        for number in range(shape.sessions):
            self.askers.append(Asker(self, f"session{number}", f"t{number // 2}"))
        for client in (*self.nodes.values(), *self.askers):
            client.live()
        for number in range(shape.requests):
            world.later(rng.uniform(0.2, shape.faults_s * 0.8), lambda number=number: self._ask(number))
        self._beat()
        self._begin_faults()
        world.later(shape.faults_s, self._calm)

    def _begin_faults(self) -> None:
        world, faults = self.world, self.world.faults
        world.regularly(faults.flush_every_s, self._flush)
        world.regularly(faults.kill_worker_every_s, lambda: self._some(lambda gateway: world.kill(gateway.host)))
        world.regularly(faults.end_worker_every_s, lambda: self._some(lambda gateway: gateway.stop()))
        world.regularly(faults.freeze_every_s, lambda: self._some(self._freeze))
        world.regularly(faults.kill_node_every_s, lambda: world.rng.choice(list(self.nodes.values())).die())
        world.regularly(faults.cut_every_s, lambda: world.rng.choice([*self.nodes.values(), *self.askers]).cut())
        world.regularly(faults.cancel_every_s, lambda: world.rng.choice(self.askers).cancel_one())
        world.regularly(faults.again_every_s, lambda: world.rng.choice(self.askers).ask_again())
        self.rogue = Host("rogue")
        rogue = self.rogue.context.run(Store, self.settings, "")
        cast("HostRedis", rogue.redis).direct = True
        world.regularly(faults.rogue_every_s, lambda: world.start(self.rogue, self._speak_falsely(Jobs(rogue))))

    def _some(self, act: Any) -> None:
        if gateway := self.some_gateway():
            self.world.note("fault", instance=gateway.host.id)
            act(gateway)

    def _ask(self, number: int) -> None:
        """Let a session send a request, sometimes two sessions of one token the same."""
        rng = self.world.rng
        asker = rng.choice(self.askers)
        facts = {
            "model": rng.choice((*MODELS, "")),
            "timeout_ms": rng.choice((2000, 4000, 8000)),
            "partials": True,
            "attempt_timeout_ms": rng.choice((500, 1000, 2500)),
            "if_no_node": rng.choice(("wait", "wait", "error")),
        }
        for other in self.askers:
            if other is asker or (other.token == asker.token and rng.random() < 0.5):
                other.ask(f"r{number}", **facts)

    # Beat

    def _beat(self) -> None:
        self.beat = Host("beat")
        store = self.beat.context.run(Store, self.settings, "")

        async def beat() -> None:
            try:
                await tend(store)
            except RedisError:
                self.world.note("beat gives up")

        self.world.start(self.beat, beat())
        self.world.later(_BEAT_S, self._beat)

    # Faults

    def _killed(self, host: Process) -> None:
        gateway = host.worker
        if isinstance(gateway, GatewayHost):
            self.world.later(0.01, gateway.cut)
            self.world.later(self.world.rng.uniform(0.3, 4), lambda: self._replace(gateway))

    def _replace(self, gateway: GatewayHost) -> None:
        if gateway in self.gateways:
            self.gateways[self.gateways.index(gateway)] = GatewayHost(self, gateway.name)

    def _freeze(self, gateway: GatewayHost) -> None:
        gateway.host.frozen_until_s = self.world.loop.time() + self.world.rng.uniform(0.5, 5)

    def _flush(self) -> None:
        self.world.note("redis is emptied")
        self.observer.emptied()
        self.server.empty()

    async def _speak_falsely(self, jobs: Jobs) -> None:
        rng = self.world.rng
        known = sorted(self.observer.jobs.items())
        if not known:
            return
        job_id, row = rng.choice(known)
        attempt, node_id = int(row["attempt"]), row.get("node_id") or "node0"
        if rng.random() < 0.5:
            attempt += rng.choice((-1, 1))
        else:
            node_id = "nobody"
        match rng.choice(("finish", "finish", "step", "retry", "dispatch")):
            case "finish":
                await jobs.finish(job_id, attempt, node_id, b"false", "ok")
            case "step":
                await rng.choice((jobs.acknowledge, jobs.start, jobs.record_partial))(job_id, attempt, node_id)
            case "retry" if attempt != int(row["attempt"]):
                await jobs.retry(job_id, attempt)
            case "dispatch" if attempt != int(row["attempt"]):
                await jobs.dispatch(job_id, attempt, node_id)

    def _calm(self) -> None:
        self.world.note("no faults any more")
        self.world.calm = True

    # The end

    async def until_settled(self) -> None:
        """Run with faults. Then check that old and new requests get answers, and that nothing is left behind."""
        await self._until(lambda: self.world.calm, self.shape.faults_s + 1, "faults never end")
        await self._until(lambda: not self._open(), SETTLE_S, "not answered")
        await asyncio.sleep(6)  # lets presences, cool-downs and connections settle
        for number, asker in enumerate(self.askers):
            asker.ask(f"last{number}", model="a", timeout_ms=20_000, attempt_timeout_ms=4000)
        await self._until(lambda: not self._open(), SETTLE_S, "not answered")
        for asker in self.askers:
            for request_id, message in asker.answers.items():
                if request_id.startswith("last") and message.get("error"):
                    self.world.fail(f"{request_id}, asked when all was well, failed: {message}")
        await self._until(lambda: not self.observer.remains(), SETTLE_S, "left over")

    def _open(self) -> list[str]:
        return [f"{asker.name}: {request_id}" for asker in self.askers for request_id in asker.waits]

    async def _until(self, condition: Any, within_s: float, otherwise: str) -> None:
        end_s = self.world.loop.time() + within_s
        while not condition():
            if self.world.loop.time() > end_s:
                self.world.fail(f"{otherwise} within {within_s:.0f} s: {self._open() or self.observer.remains()}")
            await asyncio.sleep(0.25)
