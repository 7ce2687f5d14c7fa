"""Slots of nodes: reservations that all instances see, and which nodes are left alone for a while."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import uuid4

from pipeline.nodes.state.sender import Part, call
from pipeline.nodes.state.store import Store

DOUBLED = 6
"""How often a cool-down is doubled at most."""


class Reserved(StrEnum):
    """The answer to a reservation."""

    HELD = "HELD"
    FULL = "FULL"
    AVOIDED = "AVOIDED"
    """The node dropped jobs lately."""
    MODEL_MISSING = "MODEL_MISSING"
    """The node said lately that it has not this model."""


@dataclass(frozen=True)
class Reservation:
    """A slot that is held for a job."""

    node_id: str
    job_id: str
    since_ms: int
    expires_ms: int


class Slots:
    """The slots of all nodes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys

    def _reserved(self, node_id: str) -> list[str]:
        return [self._keys.reserved(node_id), self._keys.reserved_since(node_id)]

    async def reserve(self, node_id: str, job_id: str, *, slots: int, model: str, ttl_ms: int) -> Reserved:
        """Reserve one of the node's `slots`, or prolong what the job has. Never more than `slots` are held."""
        keys = [*self._reserved(node_id), self._keys.avoid(node_id), self._keys.missing(node_id)]
        answer = await self._store.run("slot_reserve", keys, [job_id, slots, model, ttl_ms])
        return Reserved(answer.decode())

    async def release(self, node_id: str, job_id: str, *, since_ms: int | None = None) -> bool:
        """Whether there was a reservation. `since_ms`: only the one that was made then."""
        arguments: list[Part] = [job_id, "" if since_ms is None else since_ms]
        return bool(await self._store.run("slot_release", self._reserved(node_id), arguments))

    async def held(self, node_id: str) -> dict[str, int]:
        """By job, when its reservation ends."""
        return {one.job_id: one.expires_ms for one in await self.reservations([node_id])}

    async def reservations(self, node_ids: Sequence[str]) -> list[Reservation]:
        """Those of all these nodes."""
        found = await self._store.batch(
            [call("slot_held", self._reserved(node_id)) for node_id in node_ids], "slot_held"
        )
        return [
            Reservation(node_id, job_id.decode(), since_ms, expires_ms)
            for node_id, held in zip(node_ids, found, strict=True)
            for job_id, expires_ms, since_ms in zip(held[::3], held[1::3], held[2::3], strict=True)
        ]

    async def renew(self, node_id: str, job_ids: Iterable[str], ttl_ms: int) -> None:
        """Prolong these reservations. One that is over, or was given back, stays so."""
        if asked := list(job_ids):
            await self._store.run("slot_renew", self._reserved(node_id), [ttl_ms, *asked])

    async def dropped(self, node_id: str) -> int:
        """The node dropped jobs, or is silent: leave it alone. For how long from now, in ms.

        Doubled each time until `fine`, up to 64 times; drops noticed while it is left alone are the same one.
        """
        arguments = [self._store.settings.cool_down_ms, DOUBLED]
        return int(await self._store.run("slot_dropped", [self._keys.avoid(node_id)], arguments))

    async def fine(self, node_id: str) -> None:
        """The node has done a job: the next drop counts as the first."""
        await self._store.do("HDEL", self._keys.avoid(node_id), "drops")

    async def model_missing(self, node_id: str, model: str) -> bool:
        """The node has not this model: give it no job for it for a while, doubled each time.

        True for the first who says so within that time, over all instances.
        """
        arguments: list[Part] = [model, uuid4().hex, self._store.settings.cool_down_ms, DOUBLED]
        return bool(await self._store.run("model_missing", [self._keys.missing(node_id)], arguments))
