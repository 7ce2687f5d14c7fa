"""Pictures of pages in the API: few at once, each once, none for who has gone."""

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

Wanted = Callable[[], bool]


class Asked:
    """A caller."""

    def __init__(self, caller: str = "me") -> None:
        self.id = caller
        self.gone = False

    async def is_gone(self) -> bool:
        return self.gone


class Studio:
    """Makes pictures once it may, and notes which."""

    def __init__(self) -> None:
        self.open, self.lock = Event(), Lock()
        self.made: list[str] = []
        self.most = self.now = self.unwanted = 0

    def make(self, name: str) -> Callable[[Wanted], bytes]:
        def made(wanted: Wanted) -> bytes:
            with self.lock:
                self.made.append(name)
                self.now += 1
                self.most = max(self.most, self.now)
            try:
                while not self.open.wait(0.02):
                    if not wanted():
                        self.unwanted += 1
                        raise Unwanted("gone")
            finally:
                with self.lock:
                    self.now -= 1
            return name.encode()

        return made


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def run(test: Callable[[Pictures, Studio], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test(Pictures(Event()), Studio()))


def test_few_are_made_at_once_and_the_same_one_once() -> None:
    async def test(pictures: Pictures, studio: Studio) -> None:
        names = [f"{n % 6}" for n in range(24)]
        asked: list[Any] = [
            asyncio.ensure_future(pictures.get(Asked(), name, studio.make(name), urgent=False))  # type: ignore[arg-type]
            for name in names
        ]
        await until(lambda: len(studio.made) == AT_ONCE)
        studio.open.set()
        assert await asyncio.gather(*asked) == [name.encode() for name in names]
        assert sorted(studio.made) == [f"{n}" for n in range(6)]
        assert studio.most == AT_ONCE

    run(test)


def test_a_page_that_is_read_comes_before_small_ones_and_the_newest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(pictures: Pictures, studio: Studio) -> None:
        asked: list[Any] = []
        for name in ("first", "old", "new", "page"):
            urgent = name == "page"
            asked.append(
                asyncio.ensure_future(pictures.get(Asked(), name, studio.make(name), urgent=urgent))  # type: ignore[arg-type]
            )
            await asyncio.sleep(0)
        await until(lambda: len(studio.made) == 1)
        studio.open.set()
        await asyncio.gather(*asked)
        assert studio.made == ["first", "page", "new", "old"]

    monkeypatch.setattr(module, "AT_ONCE", 1)
    run(test)


def test_nothing_is_made_for_who_has_gone() -> None:
    async def test(pictures: Pictures, studio: Studio) -> None:
        requests = [Asked() for _ in range(20)]
        asked: list[Any] = [
            asyncio.ensure_future(pictures.get(one, f"{n}", studio.make(f"{n}"), urgent=False))  # type: ignore[arg-type]
            for n, one in enumerate(requests)
        ]
        await until(lambda: len(studio.made) == AT_ONCE)
        for these in (slice(AT_ONCE, None), slice(AT_ONCE)):  # who waits leaves first: a place that is free is taken
            for one in requests[these]:
                one.gone = True
            assert not any(await asyncio.gather(*asked[these]))
        await until(lambda: studio.unwanted == AT_ONCE)
        assert len(studio.made) == AT_ONCE
        studio.open.set()
        assert await pictures.get(Asked(), "0", studio.make("0"), urgent=True) == b"0"  # type: ignore[arg-type]

    run(test)


def test_what_goes_wrong_is_told_and_too_many_are_refused() -> None:
    def fail(_: Wanted) -> bytes:
        raise UserError("there is none", code="no_picture")

    async def test(pictures: Pictures, studio: Studio) -> None:
        with pytest.raises(UserError, match="there is none"):
            await pictures.get(Asked(), "x", fail, urgent=True)  # type: ignore[arg-type]
        asked: list[Any] = [
            asyncio.ensure_future(pictures.get(Asked(), f"{n}", studio.make(f"{n}"), urgent=False))  # type: ignore[arg-type]
            for n in range(EACH)
        ]
        await until(lambda: len(studio.made) == AT_ONCE)
        with pytest.raises(Refused) as refused:
            await pictures.get(Asked(), "more", studio.make("more"), urgent=False)  # type: ignore[arg-type]
        assert (refused.value.code, refused.value.headers) == ("too_many_requests", {"Retry-After": "1"})
        studio.open.set()
        await asyncio.gather(*asked)
        assert await pictures.get(Asked("other"), "y", studio.make("y"), urgent=False) == b"y"  # type: ignore[arg-type]

    run(test)
