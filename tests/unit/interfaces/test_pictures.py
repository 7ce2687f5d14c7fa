"""The API makes few pictures of pages at once, each once, and none for a disconnected client."""

import asyncio
from collections.abc import Callable, Coroutine
from threading import Event, Lock
from typing import Any

import pytest

from pipeline.engine.errors import UserError
from pipeline.interfaces.http import pictures as module
from pipeline.interfaces.http.pictures import AT_ONCE, EACH, Pictures
from pipeline.operations.refusal import Refused
from pipeline.reading.sandbox.limits import Unwanted

IsWanted = Callable[[], bool]


class Request:
    """A request of a caller, which may disconnect."""

    def __init__(self, caller: str = "me") -> None:
        self.id = caller
        self.disconnected = False

    async def is_gone(self) -> bool:
        return self.disconnected


class Studio:
    """Makes pictures once `open` is set, and records their names."""

    def __init__(self) -> None:
        self.open, self.lock = Event(), Lock()
        self.made: list[str] = []
        self.most = self.now = self.unwanted = 0

    def make(self, name: str) -> Callable[[IsWanted], bytes]:
        def render(is_wanted: IsWanted) -> bytes:
            with self.lock:
                self.made.append(name)
                self.now += 1
                self.most = max(self.most, self.now)
            try:
                while not self.open.wait(0.02):
                    if not is_wanted():
                        self.unwanted += 1
                        raise Unwanted("gone")
            finally:
                with self.lock:
                    self.now -= 1
            return name.encode()

        return render


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def run(test: Callable[[Pictures, Studio], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test(Pictures(Event()), Studio()))


def test_few_pictures_are_made_at_once_and_the_same_picture_once() -> None:
    async def test(pictures: Pictures, studio: Studio) -> None:
        names = [f"{n % 6}" for n in range(24)]
        tasks: list[Any] = [
            asyncio.ensure_future(pictures.get(Request(), name, studio.make(name), urgent=False))  # type: ignore[arg-type]
            for name in names
        ]
        await until(lambda: len(studio.made) == AT_ONCE)
        studio.open.set()
        assert await asyncio.gather(*tasks) == [name.encode() for name in names]
        assert sorted(studio.made) == [f"{n}" for n in range(6)]
        assert studio.most == AT_ONCE

    run(test)


def test_an_urgent_page_is_made_before_thumbnails_and_the_newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(pictures: Pictures, studio: Studio) -> None:
        tasks: list[Any] = []
        for name in ("first", "old", "new", "page"):
            urgent = name == "page"
            tasks.append(
                asyncio.ensure_future(pictures.get(Request(), name, studio.make(name), urgent=urgent))  # type: ignore[arg-type]
            )
            await asyncio.sleep(0)
        await until(lambda: len(studio.made) == 1)
        studio.open.set()
        await asyncio.gather(*tasks)
        assert studio.made == ["first", "page", "new", "old"]

    monkeypatch.setattr(module, "AT_ONCE", 1)
    run(test)


def test_no_picture_is_made_for_a_disconnected_client() -> None:
    async def test(pictures: Pictures, studio: Studio) -> None:
        requests = [Request() for _ in range(20)]
        tasks: list[Any] = [
            asyncio.ensure_future(pictures.get(request, f"{n}", studio.make(f"{n}"), urgent=False))  # type: ignore[arg-type]
            for n, request in enumerate(requests)
        ]
        await until(lambda: len(studio.made) == AT_ONCE)
        for group in (
            slice(AT_ONCE, None),
            slice(AT_ONCE),
        ):  # waiting requests disconnect first: a free place starts the next one
            for request in requests[group]:
                request.disconnected = True
            assert not any(await asyncio.gather(*tasks[group]))
        await until(lambda: studio.unwanted == AT_ONCE)
        assert len(studio.made) == AT_ONCE
        studio.open.set()
        assert await pictures.get(Request(), "0", studio.make("0"), urgent=True) == b"0"  # type: ignore[arg-type]

    run(test)


def test_an_error_reaches_the_client_and_too_many_requests_are_refused() -> None:
    def fail(_: IsWanted) -> bytes:
        raise UserError("there is none", code="no_picture")

    async def test(pictures: Pictures, studio: Studio) -> None:
        with pytest.raises(UserError, match="there is none"):
            await pictures.get(Request(), "x", fail, urgent=True)  # type: ignore[arg-type]
        tasks: list[Any] = [
            asyncio.ensure_future(pictures.get(Request(), f"{n}", studio.make(f"{n}"), urgent=False))  # type: ignore[arg-type]
            for n in range(EACH)
        ]
        await until(lambda: len(studio.made) == AT_ONCE)
        with pytest.raises(Refused) as refused:
            await pictures.get(Request(), "more", studio.make("more"), urgent=False)  # type: ignore[arg-type]
        assert (refused.value.code, refused.value.headers) == ("too_many_requests", {"Retry-After": "1"})
        studio.open.set()
        await asyncio.gather(*tasks)
        assert await pictures.get(Request("other"), "y", studio.make("y"), urgent=False) == b"y"  # type: ignore[arg-type]

    run(test)
