"""Writes the gateway's state as instances would, for tests of code that reads it from outside."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pipeline.nodes.job import Job, NewJob
from pipeline.nodes.protocol import Capability, Offer
from pipeline.nodes.settings import gateway_settings
from pipeline.nodes.state.inbox import Envelope, Inbox
from pipeline.nodes.state.instances import Instances
from pipeline.nodes.state.jobs import Jobs
from pipeline.nodes.state.slots import Slots
from pipeline.nodes.state.snapshots import NodeState, Snapshots
from pipeline.nodes.state.store import Store
from pipeline.storage.context import Context

Answer = TypeVar("Answer")
BOOT = "boot"


class NodeStateDriver:
    """Writes and reads the state synchronously."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def do(self, work: Callable[[Store], Awaitable[Answer]]) -> Answer:
        """Run a coroutine with the store."""

        async def done() -> Answer:
            url = self._context.settings.effective_redis_url
            async with Store(gateway_settings(self._context.settings), url) as store:
                return await work(store)

        return asyncio.run(done())

    def instance(self, instance_id: str, nodes: int = 0, sessions: int = 0) -> None:
        """Create a living instance."""

        async def begin(store: Store) -> None:
            await Inbox(store, instance_id).open()
            await Instances(store).present(instance_id, BOOT, {"nodes": nodes, "sessions": sessions})

        self.do(begin)

    def instance_dies(self, instance_id: str) -> None:
        """Let an instance die: its presence ends, and its inbox stays."""
        self.do(lambda store: Instances(store).leave(instance_id, BOOT))

    def node(
        self,
        node_id: str,
        instance_id: str,
        *,
        token_id: str = "",
        slots: int = 2,
        used: int = 0,
        draining: bool = False,
    ) -> None:
        """Connect a node to an instance."""
        offers = (Offer(capability=Capability.TEXT, models=("m",)),)
        latency_ms = {"text": 120.0}

        async def connect(store: Store) -> None:
            now_ms = await store.now_ms()
            state = NodeState(
                node_id,
                f"name of {node_id}",
                token_id,
                instance_id,
                slots,
                used,
                offers,
                latency_ms,
                draining,
                "test 1",
                now_ms,
                now_ms,
            )
            await Instances(store).nodes.take(node_id, instance_id)
            await Snapshots(store).put([state])

        self.do(connect)

    def node_goes(self, node_id: str, instance_id: str) -> None:
        async def go(store: Store) -> None:
            await Snapshots(store).remove(node_id)
            await Instances(store).nodes.drop(node_id, instance_id)

        self.do(go)

    def job(self, job_id: str, home: str, *, requester: str = "", node_id: str = "") -> Job:
        """Create a job. With a node, dispatch the job to it, with a slot."""
        new = NewJob(job_id, f"{requester}:{job_id}", "text", "m", requester, f"{home}/{BOOT}", 60_000, 30_000, 3)

        async def create(store: Store) -> Job:
            created = await Jobs(store).create(new)
            if node_id:
                await Slots(store).reserve(node_id, job_id, slots=2, model="m", ttl_ms=60_000)
                assert await Jobs(store).dispatch(job_id, 1, node_id)
            return await Jobs(store).get(job_id) or created

        return self.do(create)

    def messages(self, instance_id: str) -> list[Envelope]:
        """Read the next messages of the instance, and acknowledge them."""

        async def read(store: Store) -> list[Envelope]:
            inbox = Inbox(store, instance_id)
            envelopes = await inbox.read()
            await inbox.acknowledge([envelope.id for envelope in envelopes])
            return envelopes

        return self.do(read)

    def dead_letter(self, instance_id: str, kind: str = "assign", **body: str) -> None:
        """Create a message that upkeep moves to the dead letters."""

        async def fail(store: Store) -> None:
            inbox = Inbox(store, instance_id)
            assert await inbox.send(instance_id, kind, dict(body))
            while await inbox.read():
                pass
            for _ in range(store.settings.dlq_max_deliveries):
                await inbox.reclaim(0)

        self.do(fail)
