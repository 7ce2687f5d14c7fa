"""Jobs that wait for a node, in an order that is fair between requesters, over all instances.

A pool is what nodes are interchangeable for: `capability:model`. In each, requesters take turns: a hundred jobs of one
delay the single job of another by one.
"""

from dataclasses import dataclass

from pipeline.nodes.state.sender import Part, call
from pipeline.nodes.state.store import Store


@dataclass(frozen=True)
class Waiter:
    """A job that waits."""

    job_id: str
    home: str
    """Who schedules it."""
    requester: str


class Waiting:
    """The queues of all pools."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys

    async def enter(self, pool: str, job_id: str, requester: str, home: str, ttl_ms: int) -> None:
        """The job waits for `ttl_ms` at most. If it does already, its place stays, and `home` changes."""
        arguments: list[Part] = [job_id, requester, home, ttl_ms]
        # In this order: `pools` takes a pool off the list only if it is still empty afterwards.
        commands = [call("waiting_enter", self._keys.waiting(pool), arguments), ("SADD", self._keys.pools, pool)]
        await self._store.batch(commands, "waiting_enter")

    async def leave(self, pool: str, job_id: str) -> bool:
        """The job waits no more: it was given to a node, or is not wanted. Whether it waited."""
        return bool(await self._store.run("waiting_leave", self._keys.waiting(pool), [job_id]))

    async def heads(self, pool: str, count: int) -> list[Waiter]:
        """The next `count`, in their order."""
        _, found = await self._store.run("waiting_heads", self._keys.waiting(pool), [count])
        parts = [part.decode() for part in found]
        rows = zip(parts[::3], parts[2::3], parts[1::3], strict=True)
        return [Waiter(job_id, home, requester) for job_id, home, requester in rows]

    async def pools(self) -> dict[str, int]:
        """The pools in which jobs wait, and how many."""
        names = sorted(name.decode() for name in await self._store.do("SMEMBERS", self._keys.pools))
        found = await self._lengths(names)
        if empty := [name for name in names if not found[name]]:
            await self._store.do("SREM", self._keys.pools, *empty)
            for name, waiting in (await self._lengths(empty)).items():
                if waiting:
                    await self._store.do("SADD", self._keys.pools, name)
                    found[name] = waiting
        return {name: waiting for name, waiting in found.items() if waiting}

    async def _lengths(self, pools: list[str]) -> dict[str, int]:
        # With no heads: those that have waited for too long do not count.
        commands = [call("waiting_heads", self._keys.waiting(pool), [0]) for pool in pools]
        return {pool: int(waiting) for pool, (waiting, _) in zip(pools, await self._store.batch(commands), strict=True)}
