"""State that all seeds of gateways share: a redis-server, and the patched globals of the gateway."""

import asyncio
import logging
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch
from uuid import UUID

import structlog

from pipeline.nodes import names as node_names
from pipeline.nodes import tokens
from pipeline.nodes.tokens import TokenKind, TokenView
from pipeline.standalone.redis_server import find_server
from tests.simulation.gateway.faults import GatewayFaults
from tests.simulation.gateway.fleet import Fleet, Shape
from tests.simulation.gateway.loop import LoopWorld, acting
from tests.simulation.gateway.node import Manners
from tests.simulation.gateway.redis_client import HostRedis
from tests.simulation.gateway.server import Scripts, Server
from tests.simulation.wire import Wire

_GATEWAY, _STATE = "pipeline.nodes.gateway", "pipeline.nodes.state"


class Session:
    """Runs seeds. A context manager: leaving it stops the server."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.world: Any = None
        self.server: Any = None
        self.fleet: Any = None
        self.faults: Callable[[random.Random], GatewayFaults] = faults_of

    def __enter__(self) -> "Session":
        folder = Path(tempfile.mkdtemp(prefix="sim"))
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        socket = folder / "s"
        command = [find_server(), "--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
        self._stack.callback(server.wait)
        self._stack.callback(server.kill)
        self.wire = _connect(str(socket))
        self._stack.callback(self.wire.close)
        self.scripts = Scripts(self.wire)
        self._stack.enter_context(self._patched())
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @contextmanager
    def _patched(self) -> Iterator[None]:
        """Patch the clock, random ids, Redis, tokens and threads of processes with those of the simulation."""
        clock = SimpleNamespace(monotonic=self._monotonic)
        log = SimpleNamespace(info=_unsaid, warning=_unsaid, exception=self._unexpected)

        async def at_once(function: Callable[..., Any], *args: Any) -> Any:
            return function(*args)

        names: dict[str, Any] = {
            f"{_GATEWAY}.{name}.time": clock
            for name in ("attempts", "dispatch", "instance", "intake", "lines", "links", "view")
        }
        names |= {f"{_STATE}.{name}.uuid4": self._uuid for name in ("slots", "inbox", "upkeep")}
        names |= {
            f"{_STATE}.store.connect_async": self._connect,
            f"{_GATEWAY}.intake.uuid4": self._uuid,
            f"{_GATEWAY}.background.log": log,
            f"{_GATEWAY}.mail.log": log,
            f"{_GATEWAY}.instance.secrets": SimpleNamespace(token_hex=lambda size: self._uuid().hex[: 2 * size]),
            "asyncio.to_thread": at_once,
        }
        with ExitStack() as stack:
            stack.callback(structlog.configure, **structlog.get_config())
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
            for name, value in names.items():
                stack.enter_context(patch(name, value))
            stack.enter_context(patch.object(tokens, "authenticate", _authenticate))
            stack.enter_context(patch.object(tokens, "still_usable", lambda _, ids: set(ids)))
            stack.enter_context(patch.object(node_names, "take", lambda *_: None))  # all nodes share one token
            yield

    def _connect(self, _url: str) -> HostRedis:
        host = acting()
        assert host is not None
        return HostRedis(self.world, host, self.server, self.scripts.names)

    def _monotonic(self) -> float:
        now_s: float = self.world.loop.time()
        return now_s

    def _uuid(self) -> UUID:
        return UUID(int=self.world.rng.getrandbits(128))

    def _unexpected(self, event: str, **facts: Any) -> None:
        """Fail the seed when the gateway logs an unexpected exception."""
        error = sys.exc_info()[1]
        self.world.note(event, error=repr(error), **facts)
        self.world.fail(error or AssertionError(event))

    def run(self, seed: int) -> LoopWorld:
        """Run one seed. Returns its world, whose `failure` is the broken invariant or None."""
        rng = random.Random(seed)
        world = self.world = LoopWorld(seed, self.faults(rng))
        self.wire.call("FLUSHALL")
        self.server = Server(world, self.wire, self.scripts)
        fleet = self.fleet = Fleet(world, self.server, shape_of(world))
        world.loop.set_exception_handler(
            lambda _, facts: world.fail(facts.get("exception") or AssertionError(facts["message"]))
        )

        async def run() -> None:
            fleet.begin()
            settled = asyncio.create_task(fleet.until_settled())
            await asyncio.wait({settled, world.broken}, return_when=asyncio.FIRST_COMPLETED)
            if settled.done():
                settled.result()

        try:
            world.loop.run_until_complete(run())
        except Exception as error:  # noqa: BLE001  # reports broken invariants and errors of the gateway
            world.failure = world.failure or error
        failure = world.failure
        world.finish()
        world.failure = failure
        return world


def shape_of(world: LoopWorld) -> Shape:
    """Choose the size of a seed's fleet."""
    rng = world.rng

    def some(likely: float, *values: float) -> float:
        return rng.choice(values) if rng.random() < likely else 0.0

    manners = Manners(
        acknowledges=rng.random() < 0.8,
        starts=rng.random() < 0.8,
        drops=some(0.3, 0.1, 0.3),
        slow=some(0.4, 0.2, 0.5),
        twice=some(0.3, 0.3),
        refuses=some(0.3, 0.1, 0.4),
        fails=some(0.2, 0.1),
        deaf=some(0.4, 0.5, 1.0),
        forgets=some(0.3, 0.5),
    )
    return Shape(
        gateways=rng.choice((1, 2, 2, 3)),
        nodes=rng.randint(1, 4),
        slots=rng.choice((1, 2, 3)),
        sessions=rng.choice((1, 2, 3, 4)),
        requests=rng.choice((2, 4, 8, 12)),
        faults_s=rng.choice((3, 5, 8)),
        keeps_id=rng.random() < 0.5,
        manners=manners,
        liars=rng.choice((0, 0, 1)),
    )


def faults_of(rng: random.Random) -> GatewayFaults:
    """Choose a seed's faults. Each kind occurs in some seeds only, so that no fault hides another."""

    def some(likely: float, *values: float) -> float:
        return rng.choice(values) if rng.random() < likely else 0.0

    return GatewayFaults(
        kill=some(0.3, 0.001, 0.005),
        pause=some(0.4, 0.01, 0.05),
        repeat=some(0.3, 0.02, 0.1),
        redis_error=some(0.2, 0.005, 0.03),
        answer_lost=some(0.3, 0.005, 0.03),
        repeat_late=some(0.2, 0.01),
        flush_every_s=some(0.15, 3),
        kill_worker_every_s=some(0.3, 2, 5),
        end_worker_every_s=some(0.2, 3),
        freeze_every_s=some(0.25, 2, 5),
        cut_every_s=some(0.4, 0.5, 2),
        kill_node_every_s=some(0.3, 1, 3),
        rogue_every_s=some(0.5, 0.3),
        cancel_every_s=some(0.3, 1),
        again_every_s=some(0.4, 0.5),
    )


def _authenticate(_context: Any, secret: str, kind: TokenKind) -> TokenView:
    view = SimpleNamespace(id=secret, name=secret, kind=kind, node_id="")
    return cast("TokenView", view)


def _unsaid(*_: Any, **__: Any) -> None:
    """A metric without a reader."""


def _connect(path: str) -> Wire:
    deadline = time.monotonic() + 20
    while True:
        try:
            return Wire(path, decodes=False)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
