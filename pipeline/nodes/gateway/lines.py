"""Who of those in line is given a free slot, over the lines of all pools that could use it."""

import asyncio
import time
from typing import TYPE_CHECKING

from pipeline.nodes.gateway.view import Need
from pipeline.nodes.state.slots import Reserved

if TYPE_CHECKING:
    from pipeline.nodes.gateway.instance import Instance

TRIED = 16
"""How many nodes are asked for a slot before a job waits in line."""


class Lines:
    """Gives free slots to whoever is first in line. A slot that several lines could use goes to them in turn."""

    def __init__(self, instance: "Instance") -> None:
        self._at = instance
        self._turn = 0
        self._served: dict[str, int] = {}
        """Pools in whose line somebody was given a slot, by when."""
        self._waiting: set[str] = set()
        """Pools in whose line somebody waits, as far as this instance knows."""
        self._again: dict[str, bool] = {}
        """Pools whose line is looked at now, and whether it is to be looked at again."""
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
        if pool not in self._again:
            self._looked[pool] = asyncio.Event()
            self._at.spawn(self._pump(pool))
        self._again[pool] = True
        return self._looked[pool]

    async def freed(self, node_id: str) -> None:
        """A slot of this node may be free: whoever waits for one like it is next."""
        waiting = await self._at.state.waiting.pools()
        self._waiting = set(waiting)
        self._served = {pool: turn for pool, turn in self._served.items() if pool in waiting}
        pools = set(self._at.view.pools(node_id, waiting))
        if not pools and node_id not in self._due:
            return
        if node_id not in self._due:
            self._at.spawn(self._in_turn(node_id))
        self._due[node_id] = pools

    async def reserve(self, job_id: str, node_id: str, slots: int, model: str, ttl_ms: int) -> Reserved:
        """Reserve a slot of this node for a job."""
        at = self._at
        reserved = await at.state.slots.reserve(node_id, job_id, slots=slots, model=model, ttl_ms=ttl_ms)
        if reserved is not Reserved.HELD:
            at.view.is_full(node_id, time.monotonic())
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
            while self._again[pool]:
                self._again[pool] = False
                await self._give_slots(pool)
        finally:
            del self._again[pool]
            self._looked.pop(pool).set()

    async def _give_slots(self, pool: str) -> None:
        at, need, began = self._at, Need.of_pool(pool), time.monotonic()
        hold_ms = at.settings.attempt_timeout_ms + 10_000
        while heads := await at.state.waiting.heads(pool, 1):
            head, lacking = heads[0], set()
            if head.home != at.home and not await at.state.instances.is_alive(head.home):
                await at.state.waiting.leave(pool, head.job_id)  # who waits for it adopts it, and puts it in line
                continue
            # A node that was full since whoever is in line came into it: its next free slot is theirs, see `freed`.
            for node in at.view.candidates(need, began)[:TRIED]:
                reserved = await self.reserve(head.job_id, node.node_id, node.slots, need.model, hold_ms)
                if reserved is Reserved.HELD:
                    self._turn += 1
                    self._served[pool] = self._turn
                    first = await at.state.waiting.leave(pool, head.job_id)
                    kind = "reserved" if first else "spare"
                    at.spawn(at.delivery.tell(head.home, kind, {"job_id": head.job_id, "node_id": node.node_id}))
                    break
                if reserved is Reserved.MODEL_MISSING:
                    lacking.add(node.node_id)
            else:
                self._unserved[pool] = lacking
                return
            if len(at.view.pools(node.node_id, self._waiting)) > 1:  # its next slot may be another line's
                at.spawn(self.freed(node.node_id))
                return
        self._waiting.discard(pool)
