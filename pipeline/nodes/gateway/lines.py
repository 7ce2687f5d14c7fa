"""Where a free slot goes: to the next in line, over the lines of all pools that could use it."""

import asyncio
import time

from pipeline.nodes.gateway.background import Spawn
from pipeline.nodes.gateway.delivery import Delivery
from pipeline.nodes.gateway.view import Need, View
from pipeline.nodes.state.instances import Instances
from pipeline.nodes.state.queue import Waiting
from pipeline.nodes.state.slots import Reserved, Slots

TRIED = 16
"""How many nodes are asked for a slot before a job waits in line."""


class Lines:
    """Gives free slots to whoever is first in line. A slot that several lines could use goes to them in turn."""

    def __init__(
        self,
        home: str,
        waiting: Waiting,
        slots: Slots,
        instances: Instances,
        view: View,
        delivery: Delivery,
        spawn: Spawn,
        hold_ms: int,
    ) -> None:
        """`hold_ms`: how long a slot is reserved for a job that another instance schedules."""
        self._home = home
        self._queues = waiting
        self._slots = slots
        self._instances = instances
        self._view = view
        self._delivery = delivery
        self._spawn = spawn
        self._hold_ms = hold_ms
        self._turn = 0
        self._served: dict[str, int] = {}
        """Pools in whose line somebody was given a slot, by when."""
        self._waiting: set[str] = set()
        """Pools in whose line somebody waits, as far as this instance knows."""
        self._repeats: dict[str, bool] = {}
        """Pools whose line is looked at now, and whether it is to be looked at once more."""
        self._looked: dict[str, asyncio.Event] = {}
        """Of the same pools: set when that is done."""
        self._unserved: dict[str, set[str]] = {}
        """Pools whose line found no slot at its last look, with the nodes that have not its model."""
        self._due: dict[str, set[str]] = {}
        """Nodes that have a slot free, perhaps, and the pools that are to look at them."""

    def pump(self, pool: str) -> asyncio.Event:
        """Give free slots to whoever is first in line, of whichever instance. The event is set when that is done.

        One at a time and by itself: whoever asks for it while it is going on has it look again.
        """
        self._waiting.add(pool)
        if pool not in self._repeats:
            self._looked[pool] = asyncio.Event()
            self._spawn(self._pump(pool))
        self._repeats[pool] = True
        return self._looked[pool]

    async def slot_freed(self, node_id: str) -> None:
        """A slot of this node may be free: whoever waits for one like it is next."""
        waiting = await self._queues.pools()
        self._waiting = set(waiting)
        self._served = {pool: turn for pool, turn in self._served.items() if pool in waiting}
        pools = set(self._view.pools(node_id, waiting))
        if not pools and node_id not in self._due:
            return
        if node_id not in self._due:
            self._spawn(self._in_turn(node_id))
        self._due[node_id] = pools

    async def reserve(self, job_id: str, node_id: str, slots: int, model: str, ttl_ms: int) -> Reserved:
        """Reserve a slot of this node for a job."""
        reserved = await self._slots.reserve(node_id, job_id, slots=slots, model=model, ttl_ms=ttl_ms)
        if reserved is not Reserved.HELD:
            self._view.is_full(node_id, time.monotonic())
        return reserved

    async def _in_turn(self, node_id: str) -> None:
        try:
            while due := self._due[node_id]:
                # All at once, whoever is quickest would be next.
                pool = min(due, key=lambda pool: (self._served.get(pool, 0), pool))
                due.discard(pool)
                self._unserved.pop(pool, None)
                await self.pump(pool).wait()
                lacking = self._unserved.pop(pool, None)
                if lacking is not None and node_id not in lacking:
                    due.clear()  # it is full: its next free slot is still this line's
        finally:
            del self._due[node_id]

    async def _pump(self, pool: str) -> None:
        try:
            while self._repeats[pool]:
                self._repeats[pool] = False
                await self._give_slots(pool)
        finally:
            del self._repeats[pool]
            self._looked.pop(pool).set()

    async def _give_slots(self, pool: str) -> None:
        need, began = Need.of_pool(pool), time.monotonic()
        while heads := await self._queues.heads(pool, 1):
            head, lacking = heads[0], set()
            if head.home != self._home and not await self._instances.is_alive(head.home):
                await self._queues.leave(pool, head.job_id)  # who waits for it adopts it, and puts it in line
                continue
            # A node that has been full since the first waiter joined the line is left out: its next free slot belongs
            # to that waiter, see `slot_freed`.
            for node in self._view.candidates(need, began)[:TRIED]:
                reserved = await self.reserve(head.job_id, node.node_id, node.slots, need.model, self._hold_ms)
                if reserved is Reserved.HELD:
                    self._turn += 1
                    self._served[pool] = self._turn
                    first = await self._queues.leave(pool, head.job_id)
                    kind = "reserved" if first else "spare"
                    self._spawn(self._delivery.tell(head.home, kind, head.job_id, node.node_id))
                    break
                if reserved is Reserved.MODEL_MISSING:
                    lacking.add(node.node_id)
            else:
                self._unserved[pool] = lacking
                return
            if len(self._view.pools(node.node_id, self._waiting)) > 1:  # its next slot may be another line's
                self._spawn(self.slot_freed(node.node_id))
                return
        self._waiting.discard(pool)
