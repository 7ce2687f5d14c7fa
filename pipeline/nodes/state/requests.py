"""Requests: each is one job, however many instances get it and however often it is sent."""

from dataclasses import dataclass

from pipeline.nodes.state.sender import Part
from pipeline.nodes.state.store import Store

LOCK_MS = 2000
"""How long somebody may take to create the job; then another may."""

OUTLIVED_MS = 60_000
"""Who binds a request creates its job sooner than this. If there is none later, it was there, and is forgotten."""


@dataclass(frozen=True)
class Bound:
    """Which job a request is."""

    job_id: str
    ours: bool
    """We bound it to this job: we create it."""
    creating: bool
    """Somebody else bound it, and creates the job now: it may not be there yet."""


class Requests:
    """Request keys and their jobs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys

    async def bind(self, request_key: str, job_id: str, home: str, *, timeout_ms: int | None = None) -> Bound:
        """Bind the request to the job unless it is bound; then `unlock` it once the job is created.

        `timeout_ms`: until the job's deadline. The binding is kept as long as a result may be.
        """
        settings = self._store.settings
        timeout_ms = settings.attempt_timeout_ms * settings.max_attempts if timeout_ms is None else timeout_ms
        keys = [self._keys.request_binding(request_key), self._keys.request_lock(request_key)]
        arguments: list[Part] = [job_id, home, timeout_ms + settings.result_ttl_ms, LOCK_MS]
        job, ours, creating = await self._store.run("request_bind", keys, arguments)
        return Bound(job.decode(), bool(ours), bool(creating))

    async def take_over(self, request_key: str, home: str) -> bool:
        """Take the lock of a request whose job is missing. False: another home has it."""
        keys = [self._keys.request_lock(request_key)]
        return bool(await self._store.run("request_take_over", keys, [home, LOCK_MS]))

    async def unlock(self, request_key: str, home: str) -> None:
        """The job is created. Harmless if the lock is another's, or nobody's."""
        await self._store.run("delete_own", [self._keys.request_lock(request_key)], [home])

    async def forget(self, request_key: str, job_id: str, *, older_ms: int = 0) -> bool:
        """The request may be asked anew, if it is bound to this job, and was `older_ms` ago. Whether it may now."""
        keys = [self._keys.request_binding(request_key), self._keys.request_lock(request_key)]
        return bool(await self._store.run("request_forget", keys, [job_id, older_ms]))
