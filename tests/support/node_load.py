"""Continuous load on gateways, by Penstock's sessions, with the outcome of each request."""

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any, Self

from pipeline.engine.errors import UnitError
from pipeline.nodes.client import Session, SessionLimits, SessionReply
from pipeline.nodes.protocol import SessionResult, ToSession
from tests.support.waiting import wait_until

DEADLINE_S = 60
"""The time limit for progress, and for the last answers."""
_LIMITS = SessionLimits(open_s=2, ping_s=0.5, silent_s=1.5, back_off_s=(0.05, 0.5), patience_s=30)


class CountingSession(Session):
    """Counts the answers that arrive for each request, including those without a waiter."""

    answers: Counter[str]

    def _take(self, message: ToSession, parts: tuple[bytes, ...]) -> None:
        if isinstance(message, SessionResult):
            self.answers[message.request_id] += 1
        super()._take(message, parts)


class Load:
    """`askers` send one request after the other until the `with` block ends, which waits for the last answers."""

    def __init__(
        self,
        urls: Sequence[str],
        secret: str,
        *,
        sessions: int = 3,
        askers: int = 6,
        timeout_s: float = 60,
        name: str = "r",
        **body: Any,
    ) -> None:
        """`body`: the fields of each request beside its prompt, which is its id."""
        self.asked: set[str] = set()
        self.answered: dict[str, SessionReply] = {}
        self.failed: dict[str, UnitError] = {}
        self.answers: Counter[str] = Counter()
        self._urls, self._secret, self._name, self._body = list(urls), secret, name, body
        self._sessions, self._askers, self._timeout_s = sessions, askers, timeout_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load", daemon=True)
        self._broken: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(DEADLINE_S + self._timeout_s)
        assert not self._thread.is_alive(), f"no answer to {sorted(self.under_way)}"
        if self._broken is not None:
            raise self._broken

    @property
    def done(self) -> int:
        """Return how many requests have ended."""
        return len(self.answered) + len(self.failed)

    @property
    def under_way(self) -> set[str]:
        return self.asked - self.answered.keys() - self.failed.keys()

    def go_on(self, further: int) -> None:
        """Wait until so many further requests have answers."""
        enough = len(self.answered) + further
        wait_until(
            lambda: len(self.answered) >= enough or self._broken,
            DEADLINE_S,
            f"{enough} answers",
            last=lambda: (len(self.answered), self.failed, self.under_way),
        )
        if self._broken is not None:
            raise self._broken

    async def _run(self) -> None:
        sessions = [CountingSession(self._urls, self._secret, limits=_LIMITS) for _ in range(self._sessions)]
        numbers = count(1)
        try:
            for session in sessions:
                session.answers = self.answers
            await asyncio.gather(*(self._ask(sessions[i % len(sessions)], numbers) for i in range(self._askers)))
        except Exception as error:  # noqa: BLE001  # raised again where the test waits
            self._broken = error
        finally:
            for session in sessions:
                await session.close()

    async def _ask(self, session: Session, numbers: "count[int]") -> None:
        while not self._stopping.is_set():
            request = f"{self._name}-{next(numbers)}"
            self.asked.add(request)
            try:
                self.answered[request] = await session.request(
                    "text", "m", {"prompt": request, **self._body}, timeout_s=self._timeout_s, request_id=request
                )
            except UnitError as error:
                self.failed[request] = error
