"""The API under uvicorn, in a thread: addresses, TLS, and answers that the server gives before the application."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPSConnection
from pathlib import Path
from select import select

import pytest
import uvicorn
from structlog.testing import capture_logs

from pipeline.engine.errors import UserError
from pipeline.interfaces.api.app import create_app
from pipeline.interfaces.api.server import config, listen, url
from pipeline.process import new_context
from pipeline.settings import ApiSettings
from pipeline.storage import api_keys
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.support.tls import certificate
from tests.support.waiting import wait_until


def with_settings(context: Context, **changed: object) -> Context:
    """Return the context with these settings of the API."""
    return new_context(context.settings.model_copy(update={"api": ApiSettings.model_validate(changed)}))


@contextmanager
def served(context: Context, **settings: object) -> Iterator[int]:
    """Run a server with these settings; yield its port."""
    context = with_settings(context, **settings)
    server = uvicorn.Server(config(create_app(context), context.settings.api))
    with listen(context, "127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            wait_until(lambda: server.started, 60, "it serves")
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(60)


def ask(port: int, sent: bytes = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n") -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(sent)
        return client.recv(4000)


def refused(context: Context, **settings: object) -> str:
    with pytest.raises(UserError) as error:
        listen(with_settings(context, **settings), "0.0.0.0", 0).close()
    return error.value.code


def test_beyond_this_machine_the_api_requires_keys_and_tls(context: Context, tmp_path: Path) -> None:
    cert, key = map(str, certificate(tmp_path))
    assert refused(context, tls_certificate=cert, tls_key=key) == "no_key"
    api_keys.create(context, "mine", Scope.READ)
    assert refused(context) == "no_tls"
    assert refused(context, tls_certificate=key, tls_key=cert) == "tls"
    for fine in (with_settings(context, tls_by_proxy=True), with_settings(context, tls_certificate=cert, tls_key=key)):
        listen(fine, "0.0.0.0", 0).close()
    with pytest.raises(ValueError, match="together"):
        ApiSettings(tls_certificate=cert)


def test_the_api_serves_tls_with_its_certificate(context: Context, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with served(context, tls_certificate=str(cert), tls_key=str(key)) as port:
        client = HTTPSConnection("127.0.0.1", port, context=ssl.create_default_context(cafile=cert), timeout=30)
        client.request("GET", "/healthz")
        assert json.load(client.getresponse()) == {"status": "ok"}
        client.close()
        assert not ask(port).startswith(b"HTTP/1.1 200"), "plain HTTP gets no answer"


def test_the_printed_address_of_a_tls_server_is_https(context: Context) -> None:
    context = with_settings(context, tls_certificate="x", tls_key="x")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert url(context, listening).startswith("https://")


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"G" * 40_000 + b"\r\n\r\n"]
)
def test_malformed_http_gets_a_safe_answer(context: Context, sent: bytes) -> None:
    with served(context) as port:
        head, _, body = ask(port, sent).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"x-content-type-options: nosniff" in head
    assert json.loads(body)["code"] == "bad_request"
    assert b"GGGG" not in body


@pytest.mark.parametrize(
    ("path", "head", "start"),
    [
        ("/api/v1/documents", "Content-Type: application/pdf", b"%PDF-1.4"),
        ("/api/v1/documents", "Content-Type: multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-da"),
        ("/api/v1/documents/actions/pause", "Content-Type: application/json", b'{"ids": ['),
        ("/api/v1/documents/actions/pause", "Content-Type: application/json\r\nIdempotency-Key: k", b'{"ids": ["'),
        ("/mcp", "Content-Type: application/json", b'{"jsonrpc": '),
    ],
    ids=["a file", "a form", "JSON", "JSON, once", "MCP"],
)
def test_an_interrupted_body_is_one_log_line_and_not_an_error(
    context: Context, path: str, head: str, start: bytes
) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{head}\r\nContent-Length: 1000\r\n\r\n"
    with capture_logs() as logs, served(context) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.sendall(head.encode() + start)
        wait_until(lambda: [line for line in logs if line["event"] == "api.request"], 60, "the request is over")
    lines = [
        (line["event"], line["log_level"], line.get("status")) for line in logs if line["event"].startswith("api.")
    ]
    assert lines == [("api.request", "info", 499)]
    assert not list(context.settings.upload_dir.glob("incoming-*"))


def test_an_endless_upload_ends_at_its_time_limit(context: Context) -> None:
    """The upload is neither silent nor slow, only endless."""
    head = b"POST /api/v1/documents HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/pdf\r\n"
    with (
        served(context, body_timeout_s=0.5) as port,
        socket.create_connection(("127.0.0.1", port), timeout=30) as client,
    ):
        client.sendall(head + b"Content-Length: 400000000\r\n\r\n")

        def answered() -> bool:
            with suppress(BrokenPipeError, ConnectionResetError):
                client.sendall(bytes(10_000))
            return bool(select([client], [], [], 0)[0])

        wait_until(answered, 60, "the server ends the upload")
        assert client.recv(4000).startswith(b"HTTP/1.1 408 ")
    assert not list(context.settings.upload_dir.glob("incoming-*"))


def connected(port: int, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30, source_address=(source, 0))


def is_shut(client: socket.socket) -> bool:
    """Whether the server has closed this unanswered connection."""
    return bool(select([client], [], [], 0)[0])


UNFINISHED = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "


def test_unfinished_heads_from_two_addresses_do_not_block_others(context: Context) -> None:
    limits = {"max_connections": 64, "connections_per_address": 32, "heads_per_address": 4, "head_timeout_s": 600}
    with served(context, **limits) as port:
        heads: dict[str, list[socket.socket]] = {"127.0.0.2": [], "127.0.0.3": []}
        completed = 0
        with ExitStack() as held:
            for number in range(100):
                for source, clients in heads.items():
                    while sum(not is_shut(client) for client in clients) < 32:
                        clients.append(held.enter_context(connected(port, source)))
                        with suppress(ConnectionError):
                            clients[-1].sendall(UNFINISHED)
                path = ("/healthz", "/api/v1/documents?limit=1")[number % 2]
                answer = ask(port, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
                completed += answer.startswith(b"HTTP/1.1 200 ")
            assert completed == 100
            for clients in heads.values():
                still_open = [client for client in clients if not is_shut(client)]
                wait_until(
                    lambda still_open=still_open: sum(not is_shut(client) for client in still_open) <= 4,
                    60,
                    "few slow heads are left",
                )


def test_an_unfinished_head_gives_way_to_a_new_connection_of_its_address(context: Context) -> None:
    with served(context, connections_per_address=8) as port, ExitStack() as held:
        first = held.enter_context(connected(port))
        first.sendall(UNFINISHED)
        for _ in range(8):
            held.enter_context(connected(port))
        assert ask(port).startswith(b"HTTP/1.1 200 ")
        wait_until(lambda: is_shut(first), 60, "the server closes the connection that has waited longest")


def test_too_many_requests_of_an_address_are_refused_and_health_is_answered(context: Context) -> None:
    head = (
        b"POST /api/v1/documents/actions/pause HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\nExpect: 100-continue\r\n\r\n"
    )
    listing = b"GET /api/v1/documents HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with served(context, max_connections=12, connections_per_address=8) as port, ExitStack() as held:

        def answer(sent: bytes, source: str = "127.0.0.1") -> bytes:
            with connected(port, source) as client:
                client.sendall(sent)
                return client.recv(4000)

        def begin(count: int, source: str) -> None:
            for _ in range(count):
                client = held.enter_context(connected(port, source))
                client.sendall(head)
                assert client.recv(4000).startswith(b"HTTP/1.1 100 "), "the server waits for the body"

        begin(8, "127.0.0.1")
        busy = answer(listing)
        assert busy.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 5" in busy
        assert b"nosniff" in busy
        assert answer(listing, "127.0.0.2").startswith(b"HTTP/1.1 200 "), "another address has room"
        begin(4, "127.0.0.3")
        assert answer(listing, "127.0.0.2").startswith(b"HTTP/1.1 503 "), "no address has room"
        assert ask(port).startswith(b"HTTP/1.1 200 "), "health is answered nevertheless"
        held.close()
        wait_until(lambda: answer(listing).startswith(b"HTTP/1.1 200 "), 60, "other requests are served")
