"""Requests: each is bound to one job, however many instances receive it and however often."""

from dataclasses import dataclass

from pipeline.nodes.state.sender import Part
from pipeline.nodes.state.store import Store

LOCK_MS = 2000
"""How long an instance holds the lock while it creates the job. Then another instance may create it."""

OUTLIVED_MS = 60_000
"""Creating the job takes less time than this. A binding that is older and has no job outlived its job."""


@dataclass(frozen=True)
class Binding:
    """The job that a request is bound to."""

    job_id: str
    bound_here: bool
    """The caller bound the request to this job, and creates the job."""
    creating: bool
    """Another instance is creating the job, which may not exist yet."""


class Requests:
    """Binds request keys to jobs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys = store.keys

    async def bind(self, request_key: str, job_id: str, home: str, *, timeout_ms: int | None = None) -> Binding:
        """Bind the request to the new job's id unless it is bound already; return its binding. If it is bound here,
        create the job, then call `unlock` or let the lock expire.

        `timeout_ms`: the time until the job's deadline. The binding lasts as long as the job's result may.
        """
        settings = self._store.settings
        timeout_ms = settings.attempt_timeout_ms * settings.max_attempts if timeout_ms is None else timeout_ms
        keys = [self._keys.request_binding(request_key), self._keys.request_lock(request_key)]
        arguments: list[Part] = [job_id, home, timeout_ms + settings.result_ttl_ms, LOCK_MS]
        job, owned, creating = await self._store.run("request_bind", keys, arguments)
        return Binding(job.decode(), bool(owned), bool(creating))

    async def take_over(self, request_key: str, home: str) -> bool:
        """Take the lock of a request whose job is missing. False: another home holds it."""
        keys = [self._keys.request_lock(request_key)]
        return bool(await self._store.run("request_take_over", keys, [home, LOCK_MS]))

    async def unlock(self, request_key: str, home: str) -> None:
        """Release the lock once the job is created. Harmless unless `home` holds the lock."""
        await self._store.run("delete_own", [self._keys.request_lock(request_key)], [home])

    async def forget(self, request_key: str, job_id: str, *, older_ms: int = 0) -> bool:
        """Delete the binding if it names this job and is at least `older_ms` old. Returns whether it was deleted.

        The request then creates a new job when a session sends it again.
        """
        keys = [self._keys.request_binding(request_key), self._keys.request_lock(request_key)]
        return bool(await self._store.run("request_forget", keys, [job_id, older_ms]))
