"""Free slots for the jobs in line, over the lines of all pools."""

import asyncio
import time

from pipeline.nodes.gateway.background import Spawn
from pipeline.nodes.gateway.delivery import Delivery
from pipeline.nodes.gateway.view import Need, View
from pipeline.nodes.state.instances import Instances
from pipeline.nodes.state.queue import Waiting
from pipeline.nodes.state.slots import Reserved, Slots

MAX_CANDIDATES = 16
"""How many nodes the gateway tries before a job waits in line."""


class Lines:
    """Gives free slots to the first jobs in line. Pools that share a node take turns at its slots."""

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
        """`hold_ms`: how long a slot stays reserved until the job's home prolongs the reservation."""
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
        """By pool: the number of the turn in which its line last got a slot."""
        self._waiting: set[str] = set()
        """Pools in which jobs wait, as far as this instance knows."""
        self._repeats: dict[str, bool] = {}
        """By pool whose line is being served: whether to serve it once more."""
        self._pumped: dict[str, asyncio.Event] = {}
        """By the same pools: set when the line has been served."""
        self._unserved: dict[str, set[str]] = {}
        """Pools whose line got no slot at its last pump, with the nodes that lack its model."""
        self._due: dict[str, set[str]] = {}
        """Nodes that may have a free slot, and the pools that have yet to try it."""

    def pump(self, pool: str) -> asyncio.Event:
        """Start to reserve free slots for the first jobs in this pool's line, whatever their homes. Returns an event,
        set when the line has had its turn: it is empty, found no free slot, or left the next slot to another line.

        Each pool has one pump at a time. A call while it runs makes it start over at its end.
        """
        self._waiting.add(pool)
        if pool not in self._repeats:
            self._pumped[pool] = asyncio.Event()
            self._spawn(self._pump(pool))
        self._repeats[pool] = True
        return self._pumped[pool]

    async def slot_freed(self, node_id: str) -> None:
        """Offer a slot of this node, which may be free, to the lines of all pools that the node serves."""
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
        """Reserve one of the node's `slots` for a job; unless the answer is `HELD`, try the node for no other jobs for
        a while."""
        reserved = await self._slots.reserve(node_id, job_id, slots=slots, model=model, ttl_ms=ttl_ms)
        if reserved is not Reserved.HELD:
            self._view.mark_full(node_id, time.monotonic())
        return reserved

    async def _in_turn(self, node_id: str) -> None:
        try:
            while due := self._due[node_id]:
                # One pool after the other: if all tried at once, the fastest would win.
                pool = min(due, key=lambda pool: (self._served.get(pool, 0), pool))
                due.discard(pool)
                self._unserved.pop(pool, None)
                await self.pump(pool).wait()
                lacking = self._unserved.pop(pool, None)
                if lacking is not None and node_id not in lacking:
                    due.clear()  # the node is full, so its next free slot belongs to this line
        finally:
            del self._due[node_id]

    async def _pump(self, pool: str) -> None:
        try:
            while self._repeats[pool]:
                self._repeats[pool] = False
                await self._give_slots(pool)
        finally:
            del self._repeats[pool]
            self._pumped.pop(pool).set()

    async def _give_slots(self, pool: str) -> None:
        need, began = Need.of_pool(pool), time.monotonic()
        while heads := await self._queues.heads(pool, 1):
            head, lacking = heads[0], set()
            if head.home != self._home and not await self._instances.is_alive(head.home):
                await self._queues.leave(pool, head.job_id)  # the instance that adopts the job puts it in line again
                continue
            # Skip nodes that were full during this pump: `slot_freed` offers their next free slots to this line.
            for node in self._view.candidates(need, began)[:MAX_CANDIDATES]:
                reserved = await self.reserve(head.job_id, node.node_id, node.slots, need.model, self._hold_ms)
                if reserved is Reserved.HELD:
                    self._turn += 1
                    self._served[pool] = self._turn
                    first = await self._queues.leave(pool, head.job_id)
                    kind = "reserved" if first else "spare"
                    self._spawn(self._delivery.notify_home(head.home, kind, head.job_id, node.node_id))
                    break
                if reserved is Reserved.MODEL_MISSING:
                    lacking.add(node.node_id)
            else:
                self._unserved[pool] = lacking
                return
            if len(self._view.pools(node.node_id, self._waiting)) > 1:  # another line may be next
                self._spawn(self.slot_freed(node.node_id))
                return
        self._waiting.discard(pool)
