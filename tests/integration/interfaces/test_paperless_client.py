"""The client of paperless-ngx, against a scripted server over real HTTP."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from pipeline.engine.errors import UserError
from pipeline.interfaces.cli.connect import client as clients
from pipeline.interfaces.cli.connect.client import Paperless, PaperlessError
from tests.support.paperless_server import TOKEN, PaperlessServer, query_of
from tests.support.web_server import WebServer, html

MOST = 1_000_000


@pytest.fixture(params=[2, 3], ids=["paperless 2", "paperless 3"])
def server(request: pytest.FixtureRequest) -> Iterator[PaperlessServer]:
    with PaperlessServer(request.param, page_size=2) as server:
        yield server


@pytest.fixture
def client(server: PaperlessServer) -> Paperless:
    return Paperless(f"{server.url}/", TOKEN, MOST)


def test_all_pages_of_a_tag_are_listed_once(server: PaperlessServer, client: Paperless) -> None:
    ids = [server.add(b"%d" % number, "penstock").id for number in range(5)]
    server.add(b"other", "other")
    tag = client.tag("PENSTOCK")
    assert tag == server.tags["penstock"]
    assert [row.id for row in client.tagged(tag)] == ids
    assert [row.id for row in client.tagged(tag, 3)] == ids[:3]
    pages = [query_of(line)["page"] for line in server.requests if line.startswith("GET /api/documents/?")]
    assert pages == [["1"], ["2"], ["3"], ["1"], ["2"]]


def test_a_server_that_ignores_the_filter_takes_no_other_documents(server: PaperlessServer, client: Paperless) -> None:
    server.add(b"other", "other")
    rows = [{"id": 5, "title": "a", "tags": [1]}, {"id": 6, "title": "b", "tags": [2]}]
    with server.fault("GET /api/documents/", lambda _: JSONResponse({"next": "x", "results": rows})):
        assert [row.id for row in client.tagged(1)] == [5]


class _Endless:
    """Answers each page with new documents and a next page, as a hostile server does."""

    def __init__(self, rows: int, title: str = "a") -> None:
        self.rows, self.title, self.pages = rows, title, 0

    def __call__(self, _: Request) -> Response:
        first, self.pages = self.pages * self.rows, self.pages + 1
        rows = [{"id": first + i, "title": self.title, "tags": [1, *range(9)]} for i in range(self.rows)]
        return JSONResponse({"next": "x", "results": rows})


def test_a_page_with_more_rows_than_asked_for_is_refused(server: PaperlessServer, client: Paperless) -> None:
    with server.fault("GET /api/documents/", _Endless(51)), pytest.raises(PaperlessError, match="more rows than"):
        client.tagged(1)


def test_a_page_of_too_many_bytes_is_refused(server: PaperlessServer, client: Paperless) -> None:
    with server.fault("GET /api/documents/", _Endless(50, "x" * 100_000)), pytest.raises(PaperlessError) as caught:
        client.tagged(1)
    assert caught.value.code == "too_large"


@pytest.mark.parametrize("bound", ["_MOST_ROWS", "_LIST_S"])
def test_a_list_without_an_end_is_refused(
    server: PaperlessServer, client: Paperless, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(clients, bound, {"_MOST_ROWS": 150, "_LIST_S": 0}[bound])
    endless = _Endless(50)
    with server.fault("GET /api/documents/", endless):
        with pytest.raises(PaperlessError, match="--limit") as caught:
            client.tagged(1)
        assert endless.pages <= 3
        assert caught.value.is_down is (bound == "_LIST_S")
        assert bound == "_LIST_S" or len(client.tagged(1, 60)) == 60


def test_lists_keep_only_the_beginnings_of_names(server: PaperlessServer, client: Paperless) -> None:
    with server.fault("GET /api/documents/", _Endless(50, "x" * 10_000)):
        rows = client.tagged(1, 100)
    assert {(len(row.title), len(row.tags), row.content) for row in rows} == {(200, 1, None)}


def test_a_missing_tag_is_created_only_on_request(server: PaperlessServer, client: Paperless) -> None:
    assert client.tag("penstock") is None
    assert client.tag("penstock-done", create=True) == server.tags["penstock-done"]


def test_the_original_is_downloaded_and_its_checksum_known(
    server: PaperlessServer, client: Paperless, tmp_path: Path
) -> None:
    stored = server.add(b"the file", "penstock", filename="../../etc/passwd")
    document = client.document(stored.id)
    assert document is not None
    assert document.source().checksum == server._checksum(b"the file")
    client.download(document, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"the file"
    assert client.document(999) is None


@pytest.mark.parametrize(
    ("status", "words", "is_down"),
    [
        (401, "paperless refuses the token", False),
        (403, "the token's user lacks a permission", False),
        (404, "name the address at which the browser shows paperless", False),
        (400, "It says: the token … is odd", False),
        (429, "answered with status 429", True),
        (503, "answered with status 503", True),
    ],
)
def test_errors_say_what_to_do(
    server: PaperlessServer, client: Paperless, status: int, words: str, is_down: bool
) -> None:
    with (
        server.fault("GET /api/tags/", lambda _: Response(f"the token {TOKEN} is odd", status)),
        pytest.raises(PaperlessError, match=words) as caught,
    ):
        client.tag("penstock")
    assert caught.value.is_down is is_down
    assert TOKEN not in str(caught.value)


def test_a_wrong_token_and_a_dead_server_are_told_apart(server: PaperlessServer) -> None:
    with pytest.raises(PaperlessError, match="refuses the token") as refused:
        Paperless(server.url, "wrong", MOST).tag("x")
    with pytest.raises(PaperlessError, match="cannot be reached") as dead:
        Paperless("http://127.0.0.1:1025", TOKEN, MOST).tag("x")
    assert (refused.value.is_down, dead.value.is_down) == (False, True)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>login</html>",
        b"[]",
        b'{"results": 7}',
        b'{"results": [7]}',
        b'{"results": [{"id": "x"}]}',
        b'{"results": [{"id": %d, "title": "", "tags": [1]}]}' % 10**300,
        b"[" * 100_000,
    ],
    ids=["html", "list", "no rows", "no object", "no id", "huge id", "deep"],
)
def test_other_answers_than_paperless_gives_are_refused(
    server: PaperlessServer, client: Paperless, body: bytes
) -> None:
    with (
        server.fault("GET /api/", lambda _: Response(body)),
        pytest.raises(PaperlessError, match="does not answer like a paperless-ngx"),
    ):
        client.tagged(1)


@pytest.mark.parametrize("status", [301, 302, 307])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_redirect_carries_the_token_elsewhere(
    server: PaperlessServer, client: Paperless, status: int, method: str
) -> None:
    with WebServer() as other:
        other.pages["/api/tags/"] = html("caught")
        to = f"{other.url}/api/tags/"
        with (
            server.fault(f"{method} /api/tags/", lambda _: RedirectResponse(to, status)),
            pytest.raises(PaperlessError, match="redirects: name the address that the browser shows there"),
        ):
            client.tag("penstock", create=True)
        assert not other.seen


def test_an_endless_file_ends_at_the_limit(server: PaperlessServer, client: Paperless, tmp_path: Path) -> None:
    document = client.document(server.add(b"x").id)
    assert document is not None

    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 65_536

    with (
        server.fault(f"GET /api/documents/{document.id}/download", lambda _: StreamingResponse(endless())),
        pytest.raises(PaperlessError, match=r"more than the 1 MB .*MAX_UPLOAD_MB") as caught,
    ):
        client.download(document, tmp_path / "copy")
    assert caught.value.code == "too_large"
    assert not caught.value.is_down


def test_a_server_that_never_answers_is_given_up(
    server: PaperlessServer, client: Paperless, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "_JSON_S", 0.3)
    with server.fault("GET /api/tags/", lambda _: time.sleep(1)), pytest.raises(PaperlessError) as caught:
        client.tag("penstock")
    assert caught.value.code == "timeout"
    assert caught.value.is_down


@pytest.mark.parametrize("address", ["paperless.lan", "ftp://x", "http://user:pw@x/", "http://x:22/", ""])
def test_other_addresses_are_refused_before_any_request(address: str) -> None:
    with pytest.raises(UserError, match="Name it like"):
        Paperless(address, TOKEN, MOST)


def test_the_address_may_have_a_path_and_name_the_api() -> None:
    assert Paperless("https://x.example/docs/api/?a=1", TOKEN, MOST).address == "https://x.example/docs"
