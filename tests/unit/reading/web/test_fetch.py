"""Fetching never enters our network, and always ends, whatever the server, the name server or the address do."""

import gzip
import ipaddress
import itertools
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pipeline.engine.errors import ErrorKind, UnitError
from pipeline.reading.sandbox.limits import FetchLimits, Unwanted
from pipeline.reading.web.addresses import is_public
from pipeline.reading.web.fetch import Fetched, fetch, parse_url
from tests.support.tls import TlsProxy, certificate
from tests.support.web_server import Request, WebServer, redirect

LIMITS = FetchLimits(max_bytes=100_000, timeout_s=10)
LOCAL = [ipaddress.ip_network("127.0.0.1/32")]
"""The address of the test's server. All others follow the real rules."""

NAMES = {"site.test": ["127.0.0.1"], "other.test": ["127.0.0.1"], "inside.test": ["10.0.0.7"], "six.test": ["::1"]}


def resolve(host: str, port: int) -> Sequence[str]:
    if host in NAMES:
        return NAMES[host]
    ipaddress.ip_address(host)  # A resolver returns an address unchanged.
    return [host]


@pytest.fixture
def server() -> Iterator[WebServer]:
    with WebServer() as server:
        yield server


def get(url: str, limits: FetchLimits = LIMITS, **options: object) -> Fetched:
    return fetch(url, limits, lambda: True, **({"allow_private": LOCAL, "resolve": resolve} | options))  # type: ignore[arg-type]


def failure(url: str, limits: FetchLimits = LIMITS, **options: object) -> UnitError:
    with pytest.raises(UnitError) as caught:
        get(url, limits, **options)
    return caught.value


def test_an_answer_comes_with_its_facts_into_memory_or_a_file(server: WebServer, tmp_path: Path):
    server.pages["/a"] = lambda request: request.answer(b"hello", Content_Type="Text/Plain; charset=latin-1")
    fetched = get(server.url("/a#part"))
    assert (fetched.body, fetched.status, fetched.content_type, fetched.charset) == (
        b"hello",
        200,
        "text/plain",
        "latin-1",
    )
    assert get(server.url("/a"), to=tmp_path / "a").size_bytes == 5
    assert (tmp_path / "a").read_bytes() == b"hello"


@pytest.mark.parametrize(
    "url",
    [
        *[
            "ftp://site.test/",
            "file:///etc/passwd",
            "http://",
            "http://user:secret@site.test/",
            "nonsense",
            "http://[::1",
        ],
        "http://site.test/a b",
        "http://site.test/\r\nHost: x",
        "http://" + "a" * 5000,
        "http://site.test\\@x/",
        "http://site.test/" + "é" * 400,
    ],
)
def test_an_invalid_web_address_is_refused(url: str):
    assert failure(url).code == "bad_url"


@pytest.mark.parametrize("port", [22, 25, 6379, 5432, 11211])
def test_ports_of_other_services_are_refused(port: int):
    assert failure(f"http://site.test:{port}/").code == "address_refused"


@pytest.mark.parametrize(
    "address",
    """
    127.0.0.1 127.9.9.9 10.0.0.1 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 255.255.255.255
    192.0.0.1 198.18.0.1 240.0.0.1 192.88.99.1 :: ::1 fe80::1 fc00::1 fec0::1 ff02::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1
    64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::1 2002:7f00:1:: 2002:a00:1:: 2001::1 2001:db8::1 ::7f00:1
    192.0.0.192 192.0.0.9 168.63.129.16 100.100.100.200 64:ff9b::a83f:8110 2002:c000:c0:: ::ffff:168.63.129.16
    192.31.196.1 192.52.193.1 192.175.48.1 3fff::1 3fff:fff::1 5f00::1 2001:20::1 2620:4f:8000::1 fd00:ec2::254 100::1
    """.split(),  # noqa: SIM905  # thirty strings would be harder to read
)
def test_no_address_of_a_private_network_is_public(address: str):
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "93.184.215.14", "2606:4700:4700::1111", "64:ff9b::101:101", "2002:101:101::"]
)
def test_addresses_of_the_internet_are_public(address: str):
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "target",
    """
    http://127.0.0.1:{port}/ http://127.1:{port}/ http://2130706433:{port}/ http://169.254.169.254/latest
    http://[::1]:{port}/ http://inside.test/ http://six.test/ http://[::ffff:7f00:1]:{port}/ http://localhost:{port}/
    """.split(),  # noqa: SIM905
)
def test_redirects_into_our_network_are_refused(target: str):
    numeric = {"127.1": ["127.0.0.1"], "2130706433": ["127.0.0.1"], "localhost": ["127.0.0.1", "::1"]}
    names = {"site.test": ["127.0.0.2"]} | numeric  # 127.0.0.2 counts as public here.
    with WebServer("127.0.0.2") as server:
        server.pages["/"] = redirect(target.format(port=server.port))
        error = failure(
            server.url("/"),
            resolve=lambda host, port: names.get(host) or resolve(host, port),
            allow_private=[ipaddress.ip_network("127.0.0.2/32")],
        )
        assert (error.kind, error.code) == (ErrorKind.PERMANENT, "address_refused")
        assert len(server.seen) == 1


def test_one_private_address_among_public_ones_is_enough_to_refuse(server: WebServer):
    error = failure(server.url("/"), resolve=lambda host, port: ["127.0.0.1", "10.0.0.7"])
    assert error.code == "address_refused"
    assert server.connections == 0


def test_a_name_is_resolved_once_so_a_later_answer_has_no_effect(server: WebServer):
    answers = iter([["127.0.0.1"], ["169.254.169.254"]])
    names = []

    def rebinding(host: str, port: int) -> Sequence[str]:
        names.append(host)
        return next(answers)

    server.pages["/"] = redirect("/again")
    error = failure(server.url("/"), resolve=rebinding)
    assert error.code == "address_refused"
    assert names == ["site.test", "site.test"]  # once for each connection, which uses that address
    assert len(server.seen) == 1


def test_a_setting_allows_private_addresses_but_never_metadata_services_of_clouds(server: WebServer):
    server.pages["/"] = lambda request: request.answer(b"ok")
    assert get(server.url("/"), allow_private=True).body == b"ok"
    for metadata in ("169.254.169.254", "100.100.100.200", "192.0.0.192", "168.63.129.16", "[fd00:ec2::254]"):
        assert failure(f"http://{metadata}/", allow_private=True).code == "address_refused"
    for name in ("metadata.google.internal", "METADATA.google.internal.", "instance-data"):
        error = failure(f"http://{name}:{server.port}/", allow_private=True, resolve=lambda host, port: ["127.0.0.1"])
        assert error.code == "address_refused"
    assert failure("http://0.0.0.0/", allow_private=True).code == "address_refused"
    assert failure(server.url("/"), allow_private=False).code == "address_refused"


def test_redirects_end(server: WebServer):
    numbers = itertools.count()
    server.pages["/loop"] = lambda request: request.answer(status="302 Found", Location=f"/loop?{next(numbers)}")
    assert failure(server.url("/loop")).code == "redirects"
    assert len(server.seen) == LIMITS.max_redirects + 1


def test_headers_are_not_sent_to_another_host(server: WebServer):
    server.pages["/"] = redirect(server.url("/there", "other.test"))
    server.pages["/there"] = lambda request: request.answer(b"ok")
    assert get(server.url("/"), headers={"Authorization": "Bearer secret"}).url == server.url("/there", "other.test")
    assert [request.headers.get("authorization") for request in server.seen] == ["Bearer secret", None]


def test_a_post_is_not_redirected(server: WebServer):
    server.pages["/hook"] = redirect("/other")
    error = failure(server.url("/hook"), method="POST", body=b"{}")
    assert (error.code, len(server.seen)) == ("http_302", 1)


def endless(request: Request) -> None:
    request.send(b"HTTP/1.1 200 OK\r\n\r\n")
    while request.send(b"x" * 10_000):
        pass


def bomb(request: Request) -> None:
    packed = gzip.compress(bytes(50_000_000))
    assert len(packed) < LIMITS.max_bytes
    request.answer(packed, Content_Encoding="gzip")


def trailers(request: Request) -> None:
    request.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n")
    while request.send(b"A: b\r\n" * 1000):
        pass


def hints(request: Request) -> None:
    while request.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 100):
        pass


def headers(request: Request) -> None:
    request.send(b"HTTP/1.1 200 OK\r\n")
    while request.send(b"A: " + b"b" * 10_000 + b"\r\n"):
        pass


@pytest.mark.parametrize("page", [trailers, hints, headers])
def test_endless_data_around_a_body_ends_at_the_time_limit(server: WebServer, page):
    server.pages["/"] = page
    error = failure(server.url("/"), FetchLimits(timeout_s=0.5))
    assert (error.kind, error.code) in {(ErrorKind.TRANSIENT, "bad_reply"), (ErrorKind.TRANSIENT, "timeout")}


@pytest.mark.parametrize(
    "wait", ["1e30", "-1", "nan", "inf", "Fri, 31 Dec 9999 23:59:59 GMT", "9" * 5000, "soon", "٣", ""]
)
def test_an_absurd_wait_is_a_day_or_none(server: WebServer, wait: str):
    def refuse(request: Request) -> None:
        request.send(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\nRetry-After: " + wait.encode() + b"\r\n\r\n")

    server.pages["/"] = refuse
    wait_s = failure(server.url("/")).retry_after_s
    assert wait_s is None or 0 <= wait_s <= 86_400


@pytest.mark.parametrize("page", [endless, bomb, lambda request: request.answer(b"x", Content_Length="200000")])
def test_too_much_is_not_read(server: WebServer, page):
    server.pages["/"] = page
    error = failure(server.url("/"))
    assert (error.kind, error.code) == (ErrorKind.PERMANENT, "too_large")


def trickle(head: bytes, byte: bytes):
    pace = threading.Event()

    def page(request: Request) -> None:
        request.send(head)
        while request.send(byte):
            pace.wait(0.05)

    return page


@pytest.mark.parametrize(
    "page",
    [trickle(b"HTTP/1.1 200 OK\r\nX: ", b"a"), trickle(b"HTTP/1.1 200 OK\r\n\r\n", b"a"), Request.wait],
    ids=["headers", "body", "silence"],
)
def test_a_slow_server_is_cut_off_at_the_time_limit(server: WebServer, page):
    server.pages["/"] = page
    began = time.monotonic()
    error = failure(server.url("/"), FetchLimits(timeout_s=0.4))
    assert (error.kind, error.code) == (ErrorKind.TRANSIENT, "timeout")
    assert time.monotonic() - began < 60


def test_a_slow_name_server_is_cut_off_at_the_time_limit(server: WebServer):
    over = threading.Event()

    def slow(host: str, port: int) -> Sequence[str]:
        over.wait(60)
        return ["127.0.0.1"]

    assert failure(server.url("/"), FetchLimits(timeout_s=0.2), resolve=slow).code == "timeout"
    over.set()


def test_a_request_that_is_not_wanted_any_more_stops(server: WebServer):
    server.pages["/"] = Request.wait
    with pytest.raises(Unwanted):
        fetch(server.url("/"), LIMITS, lambda: not server.seen, allow_private=LOCAL, resolve=resolve)


def test_a_body_shorter_than_announced_is_a_bad_reply(server: WebServer):
    server.pages["/"] = lambda request: request.answer(b"half", Content_Length="8")
    server.pages["/packed"] = lambda request: request.answer(gzip.compress(b"x" * 99)[:-9], Content_Encoding="gzip")
    for path in ("/", "/packed"):
        error = failure(server.url(path))
        assert (error.kind, error.code) == (ErrorKind.TRANSIENT, "bad_reply")


def test_a_packed_answer_is_unpacked(server: WebServer):
    server.pages["/"] = lambda request: request.answer(gzip.compress(b"hello" * 1000), Content_Encoding="gzip")
    assert get(server.url("/")).body == b"hello" * 1000


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("404 Not Found", ErrorKind.PERMANENT),
        ("410 Gone", ErrorKind.PERMANENT),
        ("403 Forbidden", ErrorKind.PERMANENT),
        ("429 Too Many Requests", ErrorKind.TRANSIENT),
        ("503 Service Unavailable", ErrorKind.TRANSIENT),
    ],
)
def test_a_status_decides_whether_and_when_to_retry(server: WebServer, status: str, kind: ErrorKind):
    server.pages["/"] = lambda request: request.answer(status=status, Retry_After="7")
    error = failure(server.url("/"))
    assert (error.kind, error.code) == (kind, f"http_{status[:3]}")
    assert error.retry_after_s == (7 if kind == ErrorKind.TRANSIENT else None)


def test_the_environment_names_no_proxy(server: WebServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    server.pages["/"] = lambda request: request.answer(b"ok")
    assert get(server.url("/")).body == b"ok"


def test_a_closed_port_and_an_unknown_name_may_come_back():
    with WebServer() as server:
        pass
    assert failure(server.url("/")).code == "unreachable"

    def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    assert failure("http://nowhere.test/", resolve=unknown).code == "unknown_host"


def test_the_certificate_is_checked_against_the_name(server: WebServer, tmp_path: Path):
    server.pages["/"] = lambda request: request.answer(b"secret")
    files = certificate(tmp_path)
    trusted = ssl.create_default_context(cafile=str(files[0]))
    with TlsProxy(files, server.port) as proxy:
        assert get(f"https://127.0.0.1:{proxy.port}/", tls=trusted).body == b"secret"
        for url, context in ((f"https://127.0.0.1:{proxy.port}/", None), (f"https://site.test:{proxy.port}/", trusted)):
            error = failure(url, tls=context)
            assert (error.kind, error.code) == (ErrorKind.PERMANENT, "bad_certificate")


def test_https_does_not_lead_to_http(server: WebServer, tmp_path: Path):
    server.pages["/"] = redirect(server.url("/plain"))
    files = certificate(tmp_path)
    with TlsProxy(files, server.port) as proxy:
        error = failure(f"https://127.0.0.1:{proxy.port}/", tls=ssl.create_default_context(cafile=str(files[0])))
    assert error.code == "redirects"


def test_names_in_other_scripts_become_ascii():
    assert parse_url("http://bücher.example/ä").host == "bücher.example"
    assert parse_url("http://bücher.example/ä").raw_host == b"xn--bcher-kva.example"
