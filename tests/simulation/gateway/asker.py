"""A session that sends requests, loses its connection, and repeats its requests at other instances."""

import asyncio
from typing import TYPE_CHECKING, Any

from pipeline.nodes.protocol import Capability, JobRequest, SessionCancel, SessionOpen
from tests.simulation.gateway.clients import Client

if TYPE_CHECKING:
    from tests.simulation.gateway.fleet import Fleet

_RETRIED = {"state_lost", "redis_unavailable", "too_many_jobs", "no_node"}
"""Errors after which the session repeats the request."""


class Asker(Client):
    """A session and its requests."""

    path = "session"

    def __init__(self, fleet: "Fleet", name: str, token: str) -> None:
        super().__init__(fleet, name, token)
        self.session_id = f"{self.rng.getrandbits(128):032x}"
        self.waits: dict[str, JobRequest] = {}
        """The unanswered requests."""
        self.answers: dict[str, dict[str, Any]] = {}
        self.host.mortal = False

    async def begin(self) -> None:
        self.say(SessionOpen(session_id=self.session_id))
        for request in self.waits.values():
            self.say(request)

    def ask(self, request_id: str, **facts: Any) -> None:
        """Send a request."""
        request = JobRequest(
            request_id=request_id, capability=Capability.TEXT, body={"request": f"{self.token}:{request_id}"}, **facts
        )
        self.world.note(f"{self.name} asks", request=request_id, model=request.model, timeout_ms=request.timeout_ms)
        self.waits[request_id] = request
        self.say(request)

    def ask_again(self) -> None:
        """Repeat all unanswered requests."""
        for request in self.waits.values():
            self.say(request)

    def cancel_one(self) -> None:
        """Cancel a random request."""
        if self.waits:
            request_id = self.rng.choice(sorted(self.waits))
            del self.waits[request_id]
            self.say(SessionCancel(request_id=request_id))

    def hear(self, message: dict[str, Any]) -> None:
        request_id = message.get("request_id", "")
        if message["type"] != "job_result" or request_id not in self.waits:
            return
        error = message.get("error")
        self.world.note("is answered", request=request_id, job=message.get("job_id", "")[:6], error=error)
        if error and error["code"] in _RETRIED:
            self.act(self._later(request_id))
            return
        if not error:
            self.fleet.observer.answered(f"{self.token}:{request_id}", message)
        del self.waits[request_id]
        self.answers[request_id] = message

    async def _later(self, request_id: str) -> None:
        await asyncio.sleep(0.3)
        if request_id in self.waits:
            self.say(self.waits[request_id])
