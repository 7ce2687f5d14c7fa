"""Requests of the local sessions: each creates a job, or joins the job that its request id is bound to."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from uuid import uuid4

import structlog
from redis import RedisError

from pipeline.nodes.gateway.background import Spawn
from pipeline.nodes.gateway.delivery import answer
from pipeline.nodes.gateway.dispatch import STATE_GONE, Dispatch
from pipeline.nodes.gateway.home_job import HomeJob
from pipeline.nodes.gateway.links import Links, SessionLink
from pipeline.nodes.job import DONE, Job, NewJob
from pipeline.nodes.protocol import (
    CloseCode,
    FromSession,
    JobAccepted,
    JobError,
    JobRequest,
    SessionCancel,
    SessionOpen,
    from_session,
)
from pipeline.nodes.settings import GatewaySettings
from pipeline.nodes.state import requests
from pipeline.nodes.state.jobs import Jobs
from pipeline.nodes.state.requests import Requests

log = structlog.get_logger(__name__)
_CREATED_S = 0.05
"""How often to check whether another instance has created a job."""


class Intake:
    """The requests of all sessions of this instance."""

    def __init__(
        self,
        home: str,
        settings: GatewaySettings,
        sessions: Links[SessionLink],
        jobs: Jobs,
        requests: Requests,
        dispatch: Dispatch,
        spawn: Spawn,
        now_ms: Callable[[], Awaitable[int]],
    ) -> None:
        """`now_ms`: returns Redis' time."""
        self._home = home
        self._settings = settings
        self._sessions = sessions
        self._jobs = jobs
        self._requests = requests
        self._dispatch = dispatch
        self._spawn = spawn
        self._now_ms = now_ms

    async def serve(self, link: SessionLink) -> None:
        """Handle a session's messages until it disconnects. Raises `Ended`, `BadMessage`."""
        while True:
            message, parts = await link.connection.receive(from_session)
            self._take(link, message, parts)

    def _take(self, link: SessionLink, message: FromSession, parts: Sequence[bytes]) -> None:
        match message:
            case JobRequest() if message.request_id not in link.requests:  # ignore repeated requests
                size = link.connection.received_bytes
                if why := self._too_many(link, size):
                    error = JobError(code="too_many_jobs", message=why, kind="rate_limited", retry_after_s=1)
                    link.refuse(message.request_id, error)
                    return
                link.enter(message, size)
                self._spawn(self._begin(link, message, parts))
            case SessionCancel() if message.request_id in link.requests:  # ignore answered requests
                link.unwanted.add(message.request_id)
                self._spawn(self._cancel(link, message.request_id))
            case SessionOpen():
                link.close(CloseCode.BAD_MESSAGE, "the session is already open")

    def _too_many(self, link: SessionLink, size: int) -> str:
        """Return why the gateway refuses one more request of this size, or an empty string."""
        settings, jobs = self._settings, self._dispatch.jobs
        if len(link.requests) >= settings.max_session_jobs or (
            link.requests and link.waiting_bytes + size > settings.max_outbox_bytes
        ):
            return (
                f"a session may have {settings.max_session_jobs} jobs and {settings.max_outbox_bytes} bytes in progress"
            )
        most = settings.max_token_jobs  # compare the total first, to count the token's jobs only on a busy instance
        if len(jobs) >= most and sum(known.job.requester == link.token_id for known in jobs.values()) >= most:
            return f"one token may have {most} jobs at one instance, with those that its sessions have left behind"
        return ""

    async def _begin(self, link: SessionLink, request: JobRequest, parts: Sequence[bytes]) -> None:
        try:
            await self._join(link, request, parts)
        except RedisError as error:
            log.warning("session.request_refused", error=type(error).__name__)
            unavailable = JobError(code="redis_unavailable", message="the gateway cannot reach its Redis: retry")
            link.fail(request.request_id, unavailable)

    async def _join(self, link: SessionLink, request: JobRequest, parts: Sequence[bytes]) -> None:
        """Create the request's job, or wait for the job that it is bound to. Rule: docs/sources/nodes.md#requests."""
        began = time.monotonic()
        key = f"{link.token_id}:{request.request_id}"
        binding = await self._requests.bind(key, uuid4().hex, self._home, timeout_ms=request.timeout_ms)
        job: Job | None = None
        packed: bytes | None = None
        creating = binding.bound_here
        while not creating:
            job, packed = await self._jobs.join(binding.job_id, link.id)
            if job is not None:
                break
            # The job is missing. An old binding has outlived its job: bind the request to a new one, since nodes
            # ignore a job that they have done. Else another instance is creating the job, or died before it did.
            if await self._requests.forget(key, binding.job_id, older_ms=requests.OUTLIVED_MS):
                binding = await self._requests.bind(key, uuid4().hex, self._home, timeout_ms=request.timeout_ms)
                creating = binding.bound_here
            elif not (creating := await self._requests.take_over(key, self._home)):
                await asyncio.sleep(_CREATED_S)
        if job is None:
            # Let the lock expire: it has no effect once the job exists.
            job = await self._jobs.create(self._new(link, request, key, binding.job_id), link.id)
        if request.request_id not in link.requests:
            return  # another task has answered the request
        link.requests[request.request_id] = job.job_id
        if packed is not None:
            if job.outcome != "ok":  # in case the instance that ended the job died before it did this
                await self._requests.forget(key, job.job_id)
            answer(link, key, job.job_id, packed)
            return
        accepted = JobAccepted(request_id=request.request_id, job_id=job.job_id, state=str(job.state))
        link.connection.send(accepted)
        await self._follow(job, request, parts, began, created=creating)
        if request.request_id in link.unwanted:
            await self._cancel(link, request.request_id)

    async def _follow(
        self, job: Job, request: JobRequest, parts: Sequence[bytes], began: float, *, created: bool
    ) -> None:
        """Give a new job to a node or put it in line; only remember any other job, to adopt it if its home dies.
        `began`: when the request arrived (monotonic time)."""
        followed, remaining_s = self._dispatch.jobs, request.timeout_ms / 1000
        if not created:
            if job.job_id in followed:
                return
            remaining_s = min(remaining_s, (job.deadline_ms - await self._now_ms()) / 1000)
            job = await self._jobs.get(job.job_id) or job  # the job may have changed since
        if job.job_id in followed:  # another session of this instance was faster
            return
        home_job = HomeJob(job, request, parts, began, began + remaining_s, is_home=created, attempt=job.attempt)
        if created:
            await self._dispatch.take(home_job)
        elif job.home == self._home and job.state not in DONE:  # this instance created it, but Redis' answer was lost
            await self._dispatch.adopt(home_job, job)
        else:
            followed[job.job_id] = home_job

    def _new(self, link: SessionLink, request: JobRequest, key: str, job_id: str) -> NewJob:
        return NewJob(
            job_id=job_id,
            request_key=key,
            capability=str(request.capability),
            model=request.model,
            requester=link.token_id,
            home=self._home,
            timeout_ms=request.timeout_ms,
            attempt_timeout_ms=request.attempt_timeout_ms or self._settings.attempt_timeout_ms,
            max_attempts=self._settings.max_attempts,
        )

    async def answer_lost(self) -> None:
        """Answer requests whose jobs `Dispatch` no longer follows, because the message with the result was lost."""
        for link in list(self._sessions.values()):
            for request_id, job_id in list(link.requests.items()):
                if not job_id or job_id in self._dispatch.jobs:
                    continue
                job = await self._jobs.get(job_id)
                packed = await self._jobs.result(job_id) if job and job.outcome else None
                if link.requests.get(request_id) != job_id:
                    continue  # another task has answered the request
                if job and packed:
                    answer(link, job.request_key, job_id, packed)
                elif job is None or job.outcome:
                    link.fail(request_id, STATE_GONE, job_id)

    async def _cancel(self, link: SessionLink, request_id: str) -> None:
        job_id = link.requests.get(request_id)
        if not job_id:
            return  # if the request is about to get its job, `_join` cancels it
        link.forget(request_id)
        if not await self._jobs.leave(job_id, link.id):
            await self._dispatch.cancel(job_id)
