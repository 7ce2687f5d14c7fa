"""The lines of jobs that wait for a node, shared by all instances and fair between requesters.

Each pool, `capability:model`, has one line, in which requesters take turns: a hundred jobs of one requester delay the
single job of another by one.
"""

from dataclasses import dataclass

from pipeline.nodes.state.sender import Part, call
from pipeline.nodes.state.store import Store


@dataclass(frozen=True)
class Waiter:
    """A job in line."""

    job_id: str
    home: str
    """The process that schedules the job, as `instance/boot`."""
    requester: str


class Waiting:
    """The lines of all pools."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys

    async def enter(self, pool: str, job_id: str, requester: str, home: str, ttl_ms: int) -> None:
        """Put the job in line for `ttl_ms` at most. A job that is in line keeps its place and gets the new `home` and
        time."""
        arguments: list[Part] = [job_id, requester, home, ttl_ms]
        # Enter first: `pools` removes empty pools from the list, then reads their lengths again.
        commands = [call("waiting_enter", self._keys.waiting(pool), arguments), ("SADD", self._keys.pools, pool)]
        await self._store.batch(commands, "waiting_enter")

    async def leave(self, pool: str, job_id: str) -> bool:
        """Take the job out of line. Returns whether it was in line."""
        return bool(await self._store.run("waiting_leave", self._keys.waiting(pool), [job_id]))

    async def heads(self, pool: str, count: int) -> list[Waiter]:
        """Return the first `count` jobs of the line, in order: requesters take turns, each with its oldest job first.
        Drops expired ones."""
        _, heads = await self._store.run("waiting_heads", self._keys.waiting(pool), [count])
        parts = [part.decode() for part in heads]
        rows = zip(parts[::3], parts[2::3], parts[1::3], strict=True)
        return [Waiter(job_id, home, requester) for job_id, home, requester in rows]

    async def pools(self) -> dict[str, int]:
        """Map each pool in which jobs wait to the length of its line."""
        names = sorted(name.decode() for name in await self._store.do("SMEMBERS", self._keys.pools))
        lengths = await self._lengths(names)
        if empty := [name for name in names if not lengths[name]]:
            await self._store.do("SREM", self._keys.pools, *empty)
            for name, waiting in (await self._lengths(empty)).items():
                if waiting:
                    await self._store.do("SADD", self._keys.pools, name)
                    lengths[name] = waiting
        return {name: waiting for name, waiting in lengths.items() if waiting}

    async def _lengths(self, pools: list[str]) -> dict[str, int]:
        # `waiting_heads` removes expired waiters before it counts; 0 asks it for no heads.
        commands = [call("waiting_heads", self._keys.waiting(pool), [0]) for pool in pools]
        return {pool: int(waiting) for pool, (waiting, _) in zip(pools, await self._store.batch(commands), strict=True)}
