"""`penstock api` and `penstock up` as processes: their ports, and their behaviour with slow or malformed clients."""

import json
import shutil
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psutil
import pytest

from tests.support.cli import Cli, Running, environment, new_pdf
from tests.support.leftovers import short_folder
from tests.support.redis_server import free_port

IMPATIENT = {
    "PENSTOCK_API__HEAD_TIMEOUT_S": "1",
    "PENSTOCK_API__IDLE_TIMEOUT_S": "1",
    "PENSTOCK_API__MAX_UPLOAD_MB": "200",
}


class Api:
    """A running `penstock api`."""

    def __init__(self, cli: Cli, running: Running, port: int) -> None:
        self.cli, self.running, self.port = cli, running, port

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def get(self, path: str) -> tuple[int, Any]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", path)
        answer = connection.getresponse()
        reply = answer.status, json.load(answer)
        connection.close()
        return reply


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    """An API with short time-outs, on a data folder without a stack."""
    folder = short_folder()
    port = free_port()
    cli = Cli(folder, folder, environment(folder, **IMPATIENT, PENSTOCK_API__PORT=str(port)))
    running = cli.start("api")
    try:
        running.wait_for(f"API: http://127.0.0.1:{port}")
        yield Api(cli, running, port)
    finally:
        cli.kill_everything()
        running.wait()
        shutil.rmtree(folder, ignore_errors=True)


def test_stalled_heads_and_bodies_of_requests_are_cut_off(api: Api) -> None:
    with api.connect() as silent, api.connect() as head, api.connect() as body:
        head.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0")
        body.sendall(
            b"POST /api/v1/documents HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/pdf\r\n"
            b"Content-Length: 1000\r\n\r\n%PDF"
        )
        assert api.get("/healthz")[0] == 200, "the API serves other clients"
        assert (silent.recv(10), head.recv(10)) == (b"", b"")
        assert body.recv(1000).startswith(b"HTTP/1.1 408 ")
    assert not list((api.cli.data_dir / "uploads").glob("incoming-*"))


def test_a_too_large_body_is_refused_before_it_is_sent(api: Api) -> None:
    with api.connect() as client:
        client.sendall(
            b"POST /api/v1/documents HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/pdf\r\n"
            b"Content-Length: 900000000000\r\nExpect: 100-continue\r\n\r\n"
        )
        assert client.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_an_upload_takes_no_memory_of_its_size(api: Api) -> None:
    process = psutil.Process(api.running.process.pid)
    before = process.memory_info().rss
    most, block, count = before, bytes(1_000_000), 150
    connection = HTTPConnection("127.0.0.1", api.port, timeout=60)
    connection.putrequest("POST", "/api/v1/documents")
    connection.putheader("Content-Type", "multipart/form-data; boundary=x")
    begin = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.pdf"\r\n\r\n'
    connection.putheader("Content-Length", str(len(begin) + count * len(block) + len(b"\r\n--x--\r\n")))
    connection.endheaders(begin)
    for number in range(count):
        connection.send(block)
        if number % 10 == 0:
            most = max(most, process.memory_info().rss)
    connection.send(b"\r\n--x--\r\n")
    answer: HTTPResponse = connection.getresponse()
    assert (answer.status, json.load(answer)["code"]) == (415, "unsupported")
    connection.close()
    assert max(most, process.memory_info().rss) - before < 50_000_000
    assert not list((api.cli.data_dir / "uploads").glob("incoming-*"))


def test_a_port_in_use_and_an_open_address_without_a_key_are_refused(api: Api) -> None:
    twice = api.cli.run("api", "--port", str(api.port))
    assert twice.code == 1
    assert f"port {api.port} on 127.0.0.1 is in use" in twice.err
    elsewhere = api.cli.run("api", "--host", "0.0.0.0", "--port", "0")
    assert elsewhere.code == 1
    assert "penstock keys create" in elsewhere.err


def test_keys_are_created_listed_and_revoked(api: Api) -> None:
    created = api.cli.run("keys", "create", "reader", "--scope", "read", "--expires", "90d")
    secret = created.out.strip()
    assert secret.startswith("pstk_")
    listed = api.cli.run("keys", "list", "--json")
    assert secret not in listed.out
    assert [(key["name"], key["scope"], key["revoked_at"]) for key in listed.json()] == [("reader", "read", None)]
    assert secret.encode() not in (api.cli.data_dir / "penstock.db").read_bytes()

    def ask() -> int:
        connection = HTTPConnection("127.0.0.1", api.port, timeout=30)
        connection.request("GET", "/api/v1/documents", headers={"Authorization": f"Bearer {secret}"})
        status = connection.getresponse().status
        connection.close()
        return status

    assert ask() == 200
    assert api.cli.run("keys", "revoke", "reader").code == 0
    assert ask() == 401
    assert secret not in api.running.output
    assert api.cli.run("keys", "revoke", "nobody").code == 1
    assert api.cli.run("keys", "create", "x", "--scope", "owner").code == 2


def test_a_waiting_client_does_not_delay_the_end_of_the_server(api: Api) -> None:
    """The last test of this module: it ends the server."""
    sent = HTTPConnection("127.0.0.1", api.port, timeout=60)
    pdf = new_pdf(api.cli.cwd / "waits.pdf").read_bytes()
    sent.request("POST", "/api/v1/documents?wait=60", pdf, {"Content-Type": "application/pdf"})
    api.running.wait_for("document.submitted")
    api.running.process.terminate()
    assert json.load(sent.getresponse())["status"] == "PENDING"
    sent.close()
    assert api.running.wait(60) == 0, api.running.output
    assert "Traceback" not in api.running.output


def test_up_refuses_used_ports_and_prints_addresses_once_its_servers_listen(tmp_path: Path) -> None:
    folder, port, gateway_port = short_folder(), free_port(), free_port()
    gateway = {"PENSTOCK_GATEWAY__ENABLED": "true", "PENSTOCK_GATEWAY__PORT": str(gateway_port)}
    cli = Cli(folder, tmp_path, environment(folder, PENSTOCK_API__PORT=str(port), **gateway))
    try:
        for used_port, setting, option in (
            (port, "API__PORT", "--no-api"),
            (gateway_port, "GATEWAY__PORT", "--no-gateway"),
        ):
            with socket.create_server(("127.0.0.1", used_port)):
                refused = cli.run("up", "--api")
            assert refused.code == 1
            assert f"port {used_port} on 127.0.0.1 is in use" in refused.err
            assert f"PENSTOCK_{setting}" in refused.err
            assert option in refused.err
            assert "API: http" not in refused.err
        up = cli.start("up", "--api")
        up.wait_for(f"API: http://127.0.0.1:{port}")
        socket.create_connection(("127.0.0.1", port)).close()
        up.wait_for(f"Gateway: ws://127.0.0.1:{gateway_port}")
        elsewhere = cli.using(PENSTOCK_API__PORT=str(free_port()))
        assert elsewhere.run("console", "--address").out == f"http://127.0.0.1:{port}/console/\n"
        report = new_pdf(tmp_path / "report.pdf", 2)
        assert cli.run("convert", "report.pdf", "-o", "cli.md").code == 0
        url = f"http://127.0.0.1:{port}/api/v1/documents"
        sent = Request(f"{url}?fresh=true&wait=60", report.read_bytes(), {"Content-Type": "application/pdf"})
        with urlopen(sent, timeout=90) as answer:
            document = json.load(answer)
        assert (document["status"], document["completed_count"]) == ("COMPLETED", 2)
        with urlopen(f"{url}/{document['id']}/markdown", timeout=30) as answer:
            assert answer.read() == (tmp_path / "cli.md").read_bytes()
        with urlopen(f"{url}/{document['id']}/pages/1/attempts", timeout=30) as answer:
            assert [attempt["status"] for attempt in json.load(answer)["items"]] == ["completed"]
        with urlopen(f"{url}/{document['id']}/manifest", timeout=30) as answer:
            assert str(folder) not in answer.read().decode()
        up.wait_for("gateway.started")
        with urlopen(f"http://127.0.0.1:{gateway_port}/readyz", timeout=30) as answer:
            assert answer.status == 200
        up.interrupt()
        assert up.wait() == 0, up.output
        cli.wait_until_gone()
    finally:
        cli.kill_everything()
        shutil.rmtree(folder, ignore_errors=True)
