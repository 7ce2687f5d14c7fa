"""One instance of the gateway: what is connected to it, and what it does all the time."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog
from redis import RedisError

from pipeline.nodes import tokens
from pipeline.nodes.gateway.delivery import Delivery
from pipeline.nodes.gateway.dispatch import Dispatch
from pipeline.nodes.gateway.metrics import dispatch_histogram
from pipeline.nodes.gateway.node_link import NodeLink
from pipeline.nodes.gateway.session_link import SessionLink
from pipeline.nodes.gateway.state import SharedState
from pipeline.nodes.gateway.view import View
from pipeline.nodes.job import Finished
from pipeline.nodes.protocol import CANCELLED, CloseCode, JobError
from pipeline.nodes.settings import GatewaySettings
from pipeline.nodes.state.inbox import Envelope
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
_CHECK_S = 0.25
_TOKENS_S = 5.0
_AFTER_FAILURE_S = 0.5
_FINE_S = 1.0


class Instance:
    """Everything of one instance. `start` in the loop that serves, `stop` before it ends."""

    def __init__(self, context: Context, settings: GatewaySettings) -> None:
        self.context = context
        self.settings = settings
        self.instance_id = settings.instance_id
        if self.instance_id == "auto":
            host = "".join(char if char.isalnum() or char in "-." else "-" for char in socket.gethostname())[:40]
            self.instance_id = f"{host}-{os.getpid()}-{secrets.token_hex(3)}"
        self.boot = secrets.token_hex(6)
        self.home = f"{self.instance_id}/{self.boot}"
        self.state = SharedState.over(settings, context.settings.effective_redis_url, self.instance_id)
        self.dispatched = dispatch_histogram()
        self.view = View(self.instance_id)
        self.nodes: dict[str, NodeLink] = {}
        self.sessions: dict[str, SessionLink] = {}
        self.delivery = Delivery(self)
        self.dispatch = Dispatch(self)
        self.ending = False
        self.replaced = False
        """Whether another process has taken its name. It ends then: two would take each other's messages."""
        self.end: Callable[[], None] = lambda: None
        """Ends the process that serves it."""
        self._has_begun = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._shown: dict[str, tuple[object, float]] = {}
        self._fine: dict[str, float] = {}
        """When a node's drops were last forgiven."""
        self._clock_offset_ms = 0.0
        self.sleep = asyncio.sleep

    @property
    def links(self) -> list[NodeLink | SessionLink]:
        """Whoever is connected here."""
        return [*self.nodes.values(), *self.sessions.values()]

    def now_ms(self) -> int:
        """The time by Redis, as of when the instance started."""
        return int(time.monotonic() * 1000 + self._clock_offset_ms)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something beside what is done now. Redis being away is no defect: what looks again repairs it."""

        async def guarded() -> None:
            try:
                await work
            except RedisError as error:
                log.warning("gateway.redis", error=type(error).__name__)
            except asyncio.CancelledError:
                raise
            except Exception:
                log.exception("gateway.failed")

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def start(self) -> None:
        """Be present, open the inbox, begin the loops. Waits for Redis as long as it takes."""
        while not await self._begin():
            await self.sleep(_AFTER_FAILURE_S)
        settings = self.settings
        every: list[tuple[float, Callable[[], Awaitable[object]]]] = [
            (settings.owner_ttl_seconds / 3, self._renew),
            (settings.node_snapshot.refresh_interval_ms / 1000, self.refresh_view),
            (_CHECK_S, self.dispatch.check),
            (_TOKENS_S, self._check_tokens),
            (settings.dlq_min_idle_ms / 2000, self._reclaim),
            (settings.owner_ttl_seconds / 3, self._drain_the_dead),
        ]
        self._loops = [asyncio.create_task(self._repeat(seconds, work)) for seconds, work in every]
        self._loops.append(asyncio.create_task(self._repeat(0, self._read_inbox)))
        log.info("gateway.started", instance=self.instance_id)

    async def _begin(self) -> bool:
        try:
            await self.state.inbox.open()
            self._clock_offset_ms = await self.state.now_ms() - time.monotonic() * 1000
            await self._renew()
            await self.refresh_view()
        except RedisError as error:
            log.warning("gateway.waits_for_redis", error=type(error).__name__)
            return False
        return True

    async def stop(self) -> None:
        """Send everybody to other instances, and leave. What was under way goes on there."""
        self.ending = True
        for link in self.links:
            link.close(CloseCode.RESTART, "this instance ends")
        loops = set(self._loops)
        while loops:  # a library now and then takes a cancellation for a time-out of its own
            for task in loops:
                task.cancel()
            _, loops = await asyncio.wait(loops, timeout=1)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2)
        try:
            if not self.replaced:  # else they are connecting to the newer instance
                for node_id in list(self.nodes):
                    await self.state.instances.drop_node(node_id, self.instance_id)
                for session_id in list(self.sessions):
                    await self.state.instances.drop_session(session_id, self.instance_id)
            await self.state.instances.leave(self.instance_id, self.boot)
        except RedisError:
            log.warning("gateway.left_without_a_word")
        await self.state.store.close()

    async def _repeat(self, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await work()
            except RedisError as error:
                log.warning("gateway.redis", doing=work.__name__, error=type(error).__name__)
                await asyncio.sleep(_AFTER_FAILURE_S)
            except Exception:
                log.exception("gateway.failed", doing=work.__name__)
                await asyncio.sleep(_AFTER_FAILURE_S)
            await asyncio.sleep(seconds)

    # What it does all the time

    async def _renew(self) -> None:
        state = self.state
        info = {"nodes": len(self.nodes), "sessions": len(self.sessions)}
        if not await state.instances.present(self.instance_id, self.boot, info, begins=not self._has_begun):
            self._give_way()
            return
        self._has_begun = True
        # Who is about to become this instance's is not asked for, and who has come meanwhile is not meant.
        nodes = {one: link for one, link in self.nodes.items() if link.owned}
        sessions = {one: link for one, link in self.sessions.items() if link.owned}
        for one in await state.instances.renew(self.instance_id, nodes, sessions):
            for link in (nodes.get(one), sessions.get(one)):
                if link:
                    link.close(CloseCode.REPLACED, "it is connected to another instance")
        for session in list(self.sessions.values()):
            await session.look()
        hold_ms = self.settings.attempt_timeout_ms + 10_000
        for node in list(self.nodes.values()):
            if node.jobs:
                await node.look()
                await state.slots.renew(node.id, list(node.jobs), hold_ms)

    def _give_way(self) -> None:
        """End this instance: a newer process has its name. The newer one stays, since the older may be ending."""
        log.error("gateway.replaced", instance=self.instance_id)
        self.replaced = self.ending = True
        for link in self.links:
            link.close(CloseCode.RESTART, "another instance has its name")
        self.end()

    async def refresh_view(self) -> None:
        """Show the nodes that are here to the others, and see theirs."""
        now, ttl_s = time.monotonic(), self.settings.node_snapshot.presence_ttl_seconds
        changed = []
        for node in list(self.nodes.values()):
            facts = (node.state.used, node.state.draining, node.state.slots, node.state.connected_ms)
            known, at = self._shown.get(node.id, (None, 0.0))
            if known != facts or now - at > ttl_s / 3:
                self._shown[node.id] = (facts, now)
                changed.append(node.state)
        if changed:
            await self.state.snapshots.put(changed)
        seen = {node.node_id: node for node in await self._others()}
        seen |= {node.id: node.state for node in self.nodes.values()}
        self.view.learn(list(seen.values()))
        self._shown = {name: shown for name, shown in self._shown.items() if name in self.nodes}
        self._fine = {name: at for name, at in self._fine.items() if name in seen}

    async def _others(self) -> list[Any]:
        if not self.settings.node_snapshot.enabled:
            return []
        return [node for node in await self.state.snapshots.all() if node.instance_id != self.instance_id]

    async def _read_inbox(self) -> None:
        await self._take(await self.state.inbox.read(), again=False)

    async def _reclaim(self) -> None:
        """What failed once is tried again, until it counts as a dead letter."""
        await self._take(await self.state.inbox.reclaim(int(self.settings.dlq_min_idle_ms / 2)), again=True)

    async def _take(self, envelopes: list[Envelope], *, again: bool) -> None:
        if done := await self._handled(envelopes, again=again):
            await self.state.inbox.done(done)

    async def _handled(self, envelopes: list[Envelope], *, again: bool, dead: str = "") -> list[str]:
        """Which of the messages were handled. The others come again, until they count as dead letters."""
        done = []
        for envelope in envelopes:
            try:
                await self.delivery.take(envelope, again=again, dead=dead)
            except RedisError:
                raise
            except Exception:
                log.exception("inbox.not_done", kind=envelope.kind[:40], entry=envelope.id)
                continue
            done.append(envelope.id)
        return done

    async def _drain_the_dead(self) -> None:
        """What was sent to an instance that died is taken by another. Source 004, "failover reclaim"."""
        living = await self.state.instances.living()
        for other in await self.state.instances.all():
            if other.instance_id in living or other.instance_id == self.instance_id:
                continue
            while envelopes := await self.state.inbox.take_dead(other.instance_id):
                done = await self._handled(envelopes, again=True, dead=other.instance_id)
                await self.state.inbox.done_dead(other.instance_id, done)
            if envelopes is not None:
                await self.state.inbox.close_dead(other.instance_id)

    async def _check_tokens(self) -> None:
        """The safety net below the word that a token was revoked."""
        if ids := {link.token_id for link in self.links}:
            usable = await asyncio.to_thread(tokens.still_usable, self.context, ids)
            for token_id in ids - set(usable):
                self.close_token(token_id)

    # What others ask of it

    def close_token(self, token_id: str) -> None:
        """End every connection of a token."""
        for link in self.links:
            if link.token_id == token_id:
                link.close(CloseCode.UNAUTHORIZED, "its token was revoked or has expired")

    async def cancel(self, job_id: str) -> None:
        """End a job, as its operator wishes."""
        await self.dispatch.end(job_id, JobError(code=CANCELLED, message="cancelled by the operator", kind="cancelled"))

    async def settle(self, finished: Finished) -> None:
        """What follows a result: its slot is free."""
        job = finished.job
        if job.node_id:
            await self.state.slots.release(job.node_id, job.job_id)
        await self.state.jobs.released(job.job_id)
        if job.outcome == "ok" and time.monotonic() - self._fine.get(job.node_id, 0.0) > _FINE_S:
            self._fine[job.node_id] = time.monotonic()
            await self.state.slots.fine(job.node_id)
        if job.node_id:
            await self.dispatch.lines.freed(job.node_id)
