"""One session that is connected here: its requests, and the answers to them."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

import structlog
from redis import RedisError

from pipeline.nodes.gateway.connection import Connection
from pipeline.nodes.gateway.delivery import answer
from pipeline.nodes.gateway.dispatch import ENDED, HomeJob
from pipeline.nodes.job import Job, NewJob
from pipeline.nodes.protocol import (
    CANCELLED,
    STATE_LOST,
    CloseCode,
    FromSession,
    JobAccepted,
    JobError,
    JobRequest,
    SessionCancel,
    SessionOpen,
    SessionPartial,
    SessionResult,
    SessionWelcome,
    from_session,
)
from pipeline.nodes.state import requests
from pipeline.nodes.tokens import TokenView

if TYPE_CHECKING:
    from pipeline.nodes.gateway.instance import Instance

log = structlog.get_logger(__name__)
_CREATED_S = 0.05
"""How often to look whether somebody else has created a job."""


class SessionLink:
    """A session's connection and the requests that it waits for."""

    def __init__(
        self, instance: "Instance", connection: Connection, session_id: str, name: str, token: TokenView
    ) -> None:
        self._at = instance
        self._connection = connection
        self.id = session_id
        self.name = name
        self.token_id = token.id
        self.owned = False
        """Whether Redis knows that it is connected to this instance."""
        self._requests: dict[str, str] = {}
        """Request → job; empty while it is not known."""
        self._wants_partials: set[str] = set()
        self._unwanted: set[str] = set()
        self._bytes: dict[str, int] = {}

    def waits_for(self, job_id: str) -> bool:
        return job_id in self._requests.values()

    def result(self, message: tuple[SessionResult, Sequence[bytes]]) -> None:
        """Answer a request, once."""
        result, parts = message
        if result.request_id in self._requests:
            self._forget(result.request_id)
            self._connection.send(result, parts)

    def partial(self, message: SessionPartial) -> None:
        """Pass a piece on, unless the session does not want it or does not keep up."""
        if message.request_id in self._wants_partials:
            self._connection.send(message, dispensable=True)

    def close(self, code: CloseCode, reason: str) -> None:
        self._connection.close(code, reason)

    async def serve(self) -> None:
        """Until it goes. Raises `Ended`, `BadMessage`."""
        settings = self._at.settings
        welcome = SessionWelcome(
            instance_id=self._at.instance_id,
            max_message_bytes=settings.max_message_bytes,
            max_attachment_bytes=settings.max_attachment_bytes,
            max_jobs=settings.max_session_jobs,
        )
        self._connection.send(welcome)
        while True:
            message, parts = await self._connection.receive(from_session)
            self._take(message, parts)

    def _take(self, message: FromSession, parts: Sequence[bytes]) -> None:
        match message:
            case JobRequest():
                self._request(message, parts)
            case SessionCancel():
                if message.request_id in self._requests:  # else it has been answered
                    self._unwanted.add(message.request_id)
                    self._at.spawn(self._cancel(message.request_id))
            case SessionOpen():
                self.close(CloseCode.BAD_MESSAGE, "it is open already")

    def _request(self, request: JobRequest, parts: Sequence[bytes]) -> None:
        if request.request_id in self._requests:
            return  # the same, sent again
        size = self._connection.received_bytes
        if why := self._too_many(size):
            error = JobError(code="too_many_jobs", message=why, kind="rate_limited", retry_after_s=1)
            self._connection.send(SessionResult(request_id=request.request_id, error=error))
            return
        self._requests[request.request_id] = ""
        self._bytes[request.request_id] = size
        self._unwanted.discard(request.request_id)
        if request.partials:
            self._wants_partials.add(request.request_id)
        self._at.spawn(self._begin(request, parts))

    def _too_many(self, size: int) -> str:
        """Why the gateway refuses one more request of this size; empty: it accepts it."""
        settings, jobs = self._at.settings, self._at.dispatch.jobs
        if len(self._requests) >= settings.max_session_jobs or (
            self._bytes and sum(self._bytes.values()) + size > settings.max_outbox_bytes
        ):
            return (
                f"a session has {settings.max_session_jobs} jobs or {settings.max_outbox_bytes} bytes at once at most"
            )
        most = settings.max_token_jobs  # counted only where there are so many
        if len(jobs) >= most and sum(one.job.requester == self.token_id for one in jobs.values()) >= most:
            return f"the sessions of one token have {most} jobs at one instance at most, with those that they have left"
        return ""

    async def _begin(self, request: JobRequest, parts: Sequence[bytes]) -> None:
        try:
            await self._join(request, parts)
        except RedisError as error:
            log.warning("session.request_refused", error=type(error).__name__)
            why = JobError(code="redis_unavailable", message="the gateway cannot reach its Redis: ask again")
            self.result((SessionResult(request_id=request.request_id, error=why), ()))

    async def _join(self, request: JobRequest, parts: Sequence[bytes]) -> None:
        """Make the request a job, or wait for the job that it is already. Source 004, "Request 幂等"."""
        at, began = self._at, time.monotonic()
        key = f"{self.token_id}:{request.request_id}"
        bound = await at.state.requests.bind(key, uuid4().hex, at.home, timeout_ms=request.timeout_ms)
        job: Job | None = None
        packed: bytes | None = None
        creating = bound.mine
        while not creating:
            job, packed = await at.state.jobs.join(bound.job_id, self.id)
            if job is not None:
                break
            # Bound, and no such job. Its result was forgotten before the binding: it is another job now, since nodes
            # know that they have done the old one. Or somebody is about to create it, or died before it did.
            if await at.state.requests.forget(key, bound.job_id, older_ms=requests.OUTLIVED_MS):
                bound = await at.state.requests.bind(key, uuid4().hex, at.home, timeout_ms=request.timeout_ms)
                creating = bound.mine
            elif not (creating := await at.state.requests.take_over(key, at.home)):
                await at.sleep(_CREATED_S)
        if job is None:
            # The lock is left to expire: once the job is there, nobody looks at it.
            job = await at.state.jobs.create(self._new(request, key, bound.job_id), self.id)
        if request.request_id not in self._requests:
            return  # answered meanwhile
        self._requests[request.request_id] = job.job_id
        if packed is not None:
            if job.outcome != "ok":  # should whoever ended it have died before: whoever gets an error may ask again
                await at.state.requests.forget(key, job.job_id)
            self.result(answer(key, job.job_id, packed))
            return
        self._connection.send(JobAccepted(request_id=request.request_id, job_id=job.job_id, state=str(job.state)))
        await self._follow(job, request, parts, began, created=creating)
        if request.request_id in self._unwanted:
            await self._cancel(request.request_id)

    async def _follow(
        self, job: Job, request: JobRequest, parts: Sequence[bytes], began: float, *, created: bool
    ) -> None:
        """Schedule the job if it is new, or else be ready to, should its home die."""
        at, left_s = self._at, request.timeout_ms / 1000
        if not created:
            if job.job_id in at.dispatch.jobs:
                return
            left_s = min(left_s, (job.deadline_ms - await at.state.now_ms()) / 1000)
            job = await at.state.jobs.get(job.job_id) or job  # it may have ended since
        if job.job_id in at.dispatch.jobs:  # another session of this instance was first
            return
        home_job = HomeJob(job, request, parts, began, began + left_s, ours=created, attempt=job.attempt)
        if created:
            await at.dispatch.take(home_job)
        elif job.home == at.home and job.state not in ENDED:  # created here before, when Redis' answer was lost
            await at.dispatch.adopted(home_job, job)
        else:
            at.dispatch.jobs[job.job_id] = home_job

    def _new(self, request: JobRequest, key: str, job_id: str) -> NewJob:
        settings = self._at.settings
        return NewJob(
            job_id=job_id,
            request_key=key,
            capability=str(request.capability),
            model=request.model,
            requester=self.token_id,
            home=self._at.home,
            timeout_ms=request.timeout_ms,
            attempt_timeout_ms=request.attempt_timeout_ms or settings.attempt_timeout_ms,
            max_attempts=settings.max_attempts,
        )

    async def look(self) -> None:
        """Answer requests whose jobs nobody here follows any more: the word that they have ended was lost."""
        at = self._at
        for request_id, job_id in list(self._requests.items()):
            if not job_id or job_id in at.dispatch.jobs:
                continue
            job = await at.state.jobs.get(job_id)
            packed = await at.state.jobs.result(job_id) if job and job.outcome else None
            if self._requests.get(request_id) != job_id:
                continue  # answered meanwhile
            if job and packed:
                self.result(answer(job.request_key, job_id, packed))
            elif job is None or job.outcome:
                why = JobError(code=STATE_LOST, message="Redis lost what it knew of this job: ask again")
                self.result((SessionResult(request_id=request_id, job_id=job_id, error=why), ()))

    async def _cancel(self, request_id: str) -> None:
        job_id = self._requests.get(request_id)
        if not job_id:
            return  # not known, or about to be: then `_join` cancels it
        self._forget(request_id)
        if not await self._at.state.jobs.leave(job_id, self.id):
            await self._at.dispatch.end(job_id, JobError(code=CANCELLED, message="cancelled", kind="cancelled"))

    def _forget(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
        self._bytes.pop(request_id, None)
        self._wants_partials.discard(request_id)
        self._unwanted.discard(request_id)
