"""One gateway instance: assembles its parts, and runs its periodic work."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable

import structlog
from redis import RedisError

from pipeline.nodes import tokens
from pipeline.nodes.gateway.attempts import Attempts
from pipeline.nodes.gateway.background import AFTER_FAILURE_S, Background
from pipeline.nodes.gateway.delivery import Delivery
from pipeline.nodes.gateway.dispatch import Dispatch
from pipeline.nodes.gateway.intake import Intake
from pipeline.nodes.gateway.lines import Lines
from pipeline.nodes.gateway.links import Links, NodeLink, SessionLink
from pipeline.nodes.gateway.mail import Mail
from pipeline.nodes.gateway.metrics import dispatch_histogram
from pipeline.nodes.gateway.view import View
from pipeline.nodes.protocol import CloseCode
from pipeline.nodes.settings import GatewaySettings
from pipeline.nodes.state import upkeep
from pipeline.nodes.state.inbox import Inbox
from pipeline.nodes.state.instances import Instances
from pipeline.nodes.state.jobs import Jobs
from pipeline.nodes.state.queue import Waiting
from pipeline.nodes.state.requests import Requests
from pipeline.nodes.state.slots import Slots
from pipeline.nodes.state.snapshots import Snapshots
from pipeline.nodes.state.store import Store
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
_CHECK_S = 0.25
_TOKENS_S = 5.0


class Instance:
    """A gateway instance. Call `start` on the serving event loop, and `stop` before the loop ends."""

    def __init__(self, context: Context, settings: GatewaySettings) -> None:
        self.context = context
        self.settings = settings
        self.instance_id = instance_id = settings.instance_id
        if instance_id == "auto":
            host = "".join(char if char.isalnum() or char in "-." else "-" for char in socket.gethostname())[:40]
            self.instance_id = instance_id = f"{host}-{os.getpid()}-{secrets.token_hex(3)}"
        self.boot = secrets.token_hex(6)
        home = f"{instance_id}/{self.boot}"
        self.ending = False
        self.replaced = False
        """Another process has taken the instance's name. This one ends, since both would read the same inbox."""
        self.end: Callable[[], None] = lambda: None
        """Ends the serving process."""
        self._is_announced = False
        self._clock_offset_ms = 0.0
        self.dispatched = dispatch_histogram()
        self._background = Background()
        self.spawn = spawn = self._background.spawn

        # State shared by all instances
        self.store = store = Store(settings, context.settings.effective_redis_url)
        self.jobs = jobs = Jobs(store)
        self.slots = slots = Slots(store)
        self.waiting = waiting = Waiting(store)
        self.instances = instances = Instances(store)
        self.inbox = inbox = Inbox(store, instance_id)
        self.snapshots = snapshots = Snapshots(store)
        requests = Requests(store)

        # This instance's connections and jobs
        self.view = view = View(
            instance_id,
            snapshots,
            settings.node_snapshot,
            lambda: [link.state for link in self.nodes.values()],
        )
        self.nodes = nodes = Links[NodeLink](
            "node", instances.nodes, inbox, instance_id, spawn, lambda name: snapshots.remove(name, instance_id)
        )
        self.sessions = sessions = Links[SessionLink]("session", instances.sessions, inbox, instance_id, spawn)
        delivery = Delivery(home, nodes, sessions, inbox, jobs, requests, self._notify)
        lines = Lines(home, waiting, slots, instances, view, delivery, spawn, settings.slot_hold_ms)
        self.dispatch = Dispatch(
            home,
            settings,
            jobs,
            slots,
            waiting,
            instances,
            view,
            lines,
            delivery,
            spawn,
            store.now_ms,
            self.dispatched,
        )
        self.attempts = Attempts(settings, nodes, jobs, slots, view, lines, delivery, self.dispatch, spawn, self.now_ms)
        self.intake = Intake(home, settings, sessions, jobs, requests, self.dispatch, spawn, store.now_ms)
        reclaim_ms = int(settings.dlq_min_idle_ms / 2)
        self.mail = Mail(instance_id, inbox, instances, nodes, sessions, jobs, delivery, self.dispatch, reclaim_ms)

    async def _notify(self, kind: str, job_id: str, node_id: str) -> None:
        await self.dispatch.notify(kind, job_id, node_id)

    def now_ms(self) -> int:
        """Redis' time, by the offset measured when the instance started."""
        return int(time.monotonic() * 1000 + self._clock_offset_ms)

    async def start(self) -> None:
        """Announce the instance, open its inbox and start its loops. Waits until Redis answers."""
        while not await self._begin():
            await asyncio.sleep(AFTER_FAILURE_S)
        settings, repeat = self.settings, self._background.repeat
        repeat(settings.owner_ttl_seconds / 3, self._renew)
        repeat(settings.node_snapshot.refresh_interval_ms / 1000, self.view.refresh)
        repeat(_CHECK_S, self.dispatch.check)
        repeat(_TOKENS_S, self._check_tokens)
        repeat(settings.dlq_scan_interval_ms / 1000, self._tend)
        repeat(settings.dlq_min_idle_ms / 2000, self.mail.reclaim)
        repeat(settings.owner_ttl_seconds / 3, self.mail.drain_the_dead)
        repeat(0, self.mail.read)
        log.info("gateway.started", instance=self.instance_id)

    async def _begin(self) -> bool:
        try:
            await self.inbox.open()
            self._clock_offset_ms = await self.store.now_ms() - time.monotonic() * 1000
            await self._renew()
            await self.view.refresh()
        except RedisError as error:
            log.warning("gateway.waits_for_redis", error=type(error).__name__)
            return False
        return True

    async def stop(self) -> None:
        """Close all connections, whose clients go on at other instances, and end the instance's presence."""
        self._close_links("this instance is shutting down")
        await self._background.stop()
        try:
            if not self.replaced:  # the clients of a replaced instance connect to the newer process
                await self.nodes.drop_all()
                await self.sessions.drop_all()
            await self.instances.leave(self.instance_id, self.boot)
        except RedisError:
            log.warning("gateway.left_without_a_word")
        await self.store.close()

    def _close_links(self, reason: str) -> None:
        self.ending = True
        self.nodes.close_all(CloseCode.RESTART, reason)
        self.sessions.close_all(CloseCode.RESTART, reason)

    async def _renew(self) -> None:
        info = {"nodes": len(self.nodes), "sessions": len(self.sessions)}
        if not await self.instances.present(self.instance_id, self.boot, info, begins=not self._is_announced):
            # The older process ends, since it may be shutting down anyway.
            log.error("gateway.replaced", instance=self.instance_id)
            self.replaced = True
            self._close_links("another instance has taken this instance's name")
            self.end()
            return
        self._is_announced = True
        await self.nodes.renew()
        await self.sessions.renew()
        await self.intake.answer_lost()
        await self.attempts.renew()

    async def _tend(self) -> None:
        """Run the upkeep if this is the first of the living instances, because beat may not run."""
        alive = [instance.instance_id for instance in await self.instances.all() if instance.alive]
        if self.instance_id == min(alive, default=self.instance_id):
            await upkeep.tend(self.store)

    async def _check_tokens(self) -> None:
        """Close the connections of revoked and expired tokens, in case the notification was lost."""
        if ids := {link.token_id for link in (*self.nodes.values(), *self.sessions.values())}:
            usable = await asyncio.to_thread(tokens.still_usable, self.context, ids)
            for token_id in ids - set(usable):
                self.mail.close_token(token_id)
