"""A hostile music server: it blocks no reader, fills no memory, and its listing ends."""

import gzip
import itertools
import json
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from pipeline.flows.music.library import subsonic
from pipeline.flows.music.library.songs import LibraryError
from pipeline.flows.music.library.subsonic import SubsonicServer
from pipeline.settings import MusicSettings
from tests.support.web_server import Page, Request, WebServer


@pytest.fixture
def web() -> Iterator[WebServer]:
    with WebServer() as web:
        yield web


@pytest.fixture
def make(web: WebServer) -> Iterator[Any]:
    """Yield a maker of clients for a server with one scripted method."""
    opened: list[SubsonicServer] = []

    def open_client(method: str, page: Page, timeout_s: float = 20) -> SubsonicServer:
        web.pages[f"/rest/{method}.view"] = page
        url = f"http://127.0.0.1:{web.port}"
        settings = MusicSettings(server_url=url, user="ann", password=SecretStr("x"), page_size=10, timeout_s=timeout_s)
        opened.append(SubsonicServer(settings))
        return opened[-1]

    yield open_client
    for server in opened:
        server.__exit__(None, None, None)


def envelope(**content: Any) -> bytes:
    return json.dumps({"subsonic-response": {"status": "ok", **content}}).encode()


def says(**content: Any) -> Page:
    return lambda request: request.answer(envelope(**content))


GOOD = envelope(type="navidrome")
LENGTH = f"\r\nContent-Length: {len(GOOD)}\r\n\r\n".encode()


def trickle(head: bytes, tail: bytes) -> Page:
    """Return a page that trickles a good answer. A client that waits for its end fails the test."""
    pace = threading.Event()

    def page(request: Request) -> None:
        request.send(head)
        for _ in range(200):
            if not request.send(b" "):
                return
            pace.wait(0.02)
        request.send(tail)

    return page


@pytest.mark.parametrize(
    "page",
    [
        trickle(b"HTTP/1.1 200 OK\r\nX: a", LENGTH + GOOD),
        trickle(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", GOOD),
        trickle(b"HTTP/1.1 200 O", b"K" + LENGTH + GOOD),
        Request.wait,
    ],
    ids=["headers", "body", "status", "silence"],
)
def test_a_server_that_trickles_is_given_up_in_time(web: WebServer, make: Any, page: Page):
    with pytest.raises(LibraryError, match=r"did not answer within 0\.3 s") as caught:
        make("ping", page, timeout_s=0.3).ping()
    assert caught.value.transient


def test_a_packed_reply_does_not_become_gigabytes(make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subsonic, "MAX_REPLY_BYTES", 2_000_000)
    bomb = gzip.compress(bytes(30_000_000))
    server = make("ping", lambda request: request.answer(bomb, Content_Encoding="gzip"))
    tracemalloc.start()
    try:
        with pytest.raises(LibraryError, match="more than 2000000 bytes"):
            server.ping()
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_a_packed_reply_is_read(make: Any):
    packed = gzip.compress(envelope(type="navidrome", version="1"))
    assert make("ping", lambda request: request.answer(packed, Content_Encoding="gzip")).ping() == "navidrome 1"


def test_a_reply_of_very_many_objects_is_not_built(make: Any):
    body = b'{"subsonic-response": {"status": "ok", "x": [' + b"[]," * 600_000 + b"1]}}"
    with pytest.raises(LibraryError, match="something else"):
        make("ping", lambda request: request.answer(body)).ping()


@pytest.mark.parametrize("songs", [[None], [{"id": "v", "isVideo": True}] * 10, [[]]])
def test_a_listing_without_songs_that_never_ends_is_given_up(web: WebServer, make: Any, songs: list[object]):
    server = make("search3", says(searchResult3={"song": songs}))
    with pytest.raises(LibraryError, match="does not come to an end"):
        list(server.songs())
    assert len(web.seen) < 100


def test_a_page_larger_than_asked_for_comes_in_portions(make: Any):
    numbers = itertools.count()

    def page(request: Request) -> None:
        listed = [{"id": f"s{number}"} for number in range(95)] if not next(numbers) else []
        request.answer(envelope(searchResult3={"song": listed}))

    assert [len(portion) for portion in make("search3", page).songs()] == [10] * 9 + [5]


@pytest.mark.parametrize("count", [True, -1, 10**30, "5", 1.5, None])
def test_an_impossible_count_is_ignored(make: Any, count: object):
    assert make("getScanStatus", says(scanStatus={"count": count, "lastScan": "x" * 10_000})).count() is None


def test_a_redirect_is_not_followed(web: WebServer, make: Any):
    server = make("ping", lambda request: request.answer(status="302 Found", Location=f"http://127.0.0.1:{web.port}/"))
    with pytest.raises(LibraryError, match="HTTP 302"):
        server.ping()
    assert len(web.seen) == 1
