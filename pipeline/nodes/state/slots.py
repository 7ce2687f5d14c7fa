"""Slots of nodes: reservations that all instances share, and the cool-downs of nodes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import uuid4

from pipeline.nodes.state.sender import Part, call
from pipeline.nodes.state.store import Store

MAX_DOUBLINGS = 6
"""How often a cool-down doubles at most."""


class Reserved(StrEnum):
    """The answer of `Slots.reserve`."""

    HELD = "HELD"
    FULL = "FULL"
    AVOIDED = "AVOIDED"
    """The node is in its cool-down after it dropped jobs."""
    MODEL_MISSING = "MODEL_MISSING"
    """The node lately reported that it lacks this model."""


@dataclass(frozen=True)
class Reservation:
    """A slot that a job holds."""

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
        """Reserve one of the node's `slots` for the job, for `ttl_ms` from now, or prolong the job's reservation.
        Returns `HELD`, or why not: full, cooling down, or without this model."""
        keys = [*self._reserved(node_id), self._keys.avoid(node_id), self._keys.missing(node_id)]
        answer = await self._store.run("slot_reserve", keys, [job_id, slots, model, ttl_ms])
        return Reserved(answer.decode())

    async def release(self, node_id: str, job_id: str, *, since_ms: int | None = None) -> bool:
        """Free the job's slot at the node; with `since_ms`, only a reservation that began at that time of Redis.
        Returns whether a slot was freed."""
        arguments: list[Part] = [job_id, "" if since_ms is None else since_ms]
        return bool(await self._store.run("slot_release", self._reserved(node_id), arguments))

    async def held(self, node_id: str) -> dict[str, int]:
        """Map each job that holds a slot of the node to the end of its reservation, in ms since the epoch."""
        return {held.job_id: held.expires_ms for held in await self.reservations([node_id])}

    async def reservations(self, node_ids: Sequence[str]) -> list[Reservation]:
        """Return the reservations at all these nodes."""
        answers = await self._store.batch(
            [call("slot_held", self._reserved(node_id)) for node_id in node_ids], "slot_held"
        )
        return [
            Reservation(node_id, job_id.decode(), since_ms, expires_ms)
            for node_id, held in zip(node_ids, answers, strict=True)
            for job_id, expires_ms, since_ms in zip(held[::3], held[1::3], held[2::3], strict=True)
        ]

    async def renew(self, node_id: str, job_ids: Iterable[str], ttl_ms: int) -> None:
        """Prolong these jobs' reservations. Expired and released ones stay ended."""
        if jobs := list(job_ids):
            await self._store.run("slot_renew", self._reserved(node_id), [ttl_ms, *jobs])

    async def cool_down(self, node_id: str) -> int:
        """Give a node that dropped jobs or fell silent no jobs for a while. Returns the ms that remain.

        The time doubles with each cool-down until `reset_cool_down`, up to 64 times. Calls within a cool-down leave
        it unchanged.
        """
        arguments = [self._store.settings.cool_down_ms, MAX_DOUBLINGS]
        return int(await self._store.run("slot_dropped", [self._keys.avoid(node_id)], arguments))

    async def reset_cool_down(self, node_id: str) -> None:
        """Make the next cool-down as short as the first, since the node has done a job."""
        await self._store.do("HDEL", self._keys.avoid(node_id), "drops")

    async def mark_model_missing(self, node_id: str, model: str) -> bool:
        """Give a node that lacks the model no jobs for it for a while, which doubles each time.

        Returns False while another call's mark lasts, of any instance.
        """
        arguments: list[Part] = [model, uuid4().hex, self._store.settings.cool_down_ms, MAX_DOUBLINGS]
        return bool(await self._store.run("model_missing", [self._keys.missing(node_id)], arguments))
