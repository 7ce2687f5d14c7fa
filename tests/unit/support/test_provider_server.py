import base64
import hashlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from tests.support.provider_server import Fault, ProviderServer, default_markdown

IMAGE = b"\x89PNG\r\n\x1a\n picture"
DIGEST = hashlib.sha256(IMAGE).hexdigest()


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with ProviderServer() as server:
        yield server


@contextmanager
def client_of(base_url: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(timeout=10, limits=httpx2.Limits(max_connections=None)) as client:
        client.base_url = httpx2.URL(base_url.removesuffix("/v1"))
        yield client


@pytest.fixture
def client(server: ProviderServer) -> Iterator[httpx2.Client]:
    with client_of(server.base_url) as client:
        yield client


def chat(client: httpx2.Client, prompt: str = "Hello", image: bytes | None = None, **body: Any) -> httpx2.Response:
    content: Any = prompt
    if image is not None:
        url = "data:image/png;base64," + base64.b64encode(image).decode()
        content = [{"type": "text", "text": prompt}, {"type": "image_url", "image_url": {"url": url}}]
    messages = [{"role": "user", "content": content}]
    return client.post("/v1/chat/completions", json={"model": "m", "messages": messages, **body})


def text_of(response: httpx2.Response) -> str:
    return str(response.json()["choices"][0]["message"]["content"])


def test_the_answer_tells_which_picture_was_sent(server: ProviderServer, client: httpx2.Client) -> None:
    assert text_of(chat(client, "Convert", IMAGE)) == default_markdown(IMAGE)
    record = server.records[0]
    assert (record.image_sha256, record.prompt, record.model, record.status) == (DIGEST, "Convert", "m", 200)


def test_faults_are_used_up_in_order_and_then_calls_succeed(server: ProviderServer, client: httpx2.Client) -> None:
    server.push(Fault(status=500), None, Fault(status=429, headers={"Retry-After": "9"}, body={"error": {}}))
    replies = [chat(client) for _ in range(4)]
    assert [reply.status_code for reply in replies] == [500, 200, 429, 200]
    assert replies[2].headers["Retry-After"] == "9"
    assert server.counts == {500: 1, 200: 2, 429: 1}


def test_calls_over_the_limit_of_a_window_are_refused_with_a_wait(
    client: httpx2.Client, server: ProviderServer
) -> None:
    server.configure({"limit": 2, "window_s": 60})
    replies = [chat(client) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert 0 < int(replies[2].headers["Retry-After"]) <= 60
    assert replies[2].json()["error"]["code"] == "rate_limit_exceeded"


def test_calls_over_the_allowed_concurrency_are_refused(server: ProviderServer, client: httpx2.Client) -> None:
    server.configure({"max_concurrent": 1, "faults": [{"kind": "hang"}]})
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(chat, client)
        assert server.wait_for_calls(1)
        assert chat(client).status_code == 429
        server.stop()
        with pytest.raises(httpx2.TransportError):
            hanging.result()


def test_sixty_four_calls_run_at_once(server: ProviderServer, client: httpx2.Client) -> None:
    server.script.latency_s = 3
    with ThreadPoolExecutor(64) as pool:
        replies = [pool.submit(chat, client) for _ in range(64)]
        assert server.wait_for(lambda: server.max_concurrent == 64)
        assert {reply.result().status_code for reply in replies} == {200}


def test_sequential_calls_never_count_as_concurrent(server: ProviderServer, client: httpx2.Client) -> None:
    for _ in range(50):
        chat(client)
    assert server.max_concurrent == 1


def raw_call(connection: socket.socket) -> None:
    body = b'{"model": "m"}'
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)


@pytest.mark.parametrize("kind", ["hang", "trickle", "trickle_headers", "close"])
def test_replies_that_never_end_well_are_recorded_as_unanswered(server: ProviderServer, kind: Any) -> None:
    server.push(Fault(kind=kind))
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        raw_call(connection)
        assert server.wait_for_calls(1)
    assert server.wait_for(lambda: server.stats()["under_way"] == 0)
    assert server.counts == {0: 1}


def test_the_program_serves_is_scripted_and_reports_over_http() -> None:
    command = [sys.executable, "-m", "tests.support.provider_server", "--limit-per-s", "1000", "--latency", "0.01"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        with client_of(process.stdout.readline().strip()) as client:
            script = {"faults": [{"status": 503}], "latency_s": 0.0}
            assert client.post("/__script", json=script).json() == {"ok": True}
            assert client.post("/__script", json={"nonsense": 1}).status_code == 400
            assert [chat(client).status_code, chat(client, image=IMAGE).status_code] == [503, 200]
            stats = client.get("/__stats").json()
            assert stats["by_status"] == {"503": 1, "200": 1}
            assert stats["records"][1]["image_sha256"] == DIGEST
            client.post("/__script", json={"reset": True})
            assert client.get("/__stats?records=0").json() == {
                "calls": 0,
                "by_status": {},
                "max_concurrent": 0,
                "under_way": 0,
                "busy_s": 0.0,
                "span_s": 0.0,
            }
        process.terminate()
