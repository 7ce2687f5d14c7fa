"""Connections to Redis over TLS, with passwords and through sentinels, by Penstock, Celery's broker and its backend."""

import asyncio
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from celery import Celery
from redis import RedisError

from pipeline.engine.connection import SentinelView, ask_sentinels, connect, connect_async, connect_cluster
from pipeline.settings import get_settings
from pipeline.settings.redis_url import RedisUrlError
from tasks.app import app as production
from tests.support.leftovers import short_folder
from tests.support.redis_server import RedisServer, free_port
from tests.support.sentinels import NAME, PASSWORD, SENTINEL_PASSWORD, Sentinel, sentinel_url
from tests.support.tls import TlsProxy, certificate

ROOT = Path(__file__).resolve().parents[3]
AppOver = Callable[[str], Celery]


@pytest.fixture(scope="module")
def files() -> tuple[Path, Path]:
    return certificate(short_folder())


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(short_folder() / "redis", password=PASSWORD) as server:
        yield server


@pytest.fixture(scope="module")
def secured(server: RedisServer, files: tuple[Path, Path]) -> Iterator[TlsProxy]:
    """The server, over TLS."""
    with TlsProxy(files, server.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def sentinel(secured: TlsProxy) -> Iterator[Sentinel]:
    """A sentinel that names the master's TLS port."""
    with Sentinel(short_folder(), secured.port) as sentinel:
        yield sentinel


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> Iterator[AppOver]:
    """Return a function that builds an application with production's configuration and backends for a URL."""

    def make(url: str) -> Celery:
        monkeypatch.setenv("PENSTOCK_REDIS_URL", url)
        get_settings.cache_clear()
        config = runpy.run_path(str(ROOT / "celeryconfig.py"))
        app = type(production)("connected", set_as_current=False)
        app.loader.override_backends = production.loader.override_backends
        app.config_from_object(SimpleNamespace(**{name: config[name] for name in config if not name.startswith("_")}))
        return app

    yield make
    get_settings.cache_clear()


def tls_url(port: int, options: str = "", host: str = "127.0.0.1") -> str:
    return f"rediss://:{quote(PASSWORD, safe='')}@{host}:{port}/0?{options}"


def refusal(url: str) -> str:
    with pytest.raises(RedisError) as caught, connect(url, retries=0) as client:
        client.ping()
    return str(caught.value)


def assert_celery_works(app: Celery) -> None:
    """Send a message through the broker, and let the backend count a chord's part by its position."""
    with app.connection_for_write() as connection, connection.SimpleQueue("connected") as queue:
        queue.put({"number": 7})
        message = queue.get(timeout=60)
        assert message.payload == {"number": 7}
        message.ack()
    app.backend.set_chord_size("group", 2)
    part = SimpleNamespace(id="part", group="group", group_index=0, chord=None)
    app.backend.on_chord_part_return(part, "SUCCESS", None)
    assert app.backend.client.smembers(app.backend.get_key_for_group("group", ".d")) == {b"group:0:0"}
    app.backend.client.flushall()
    app.backend.client.connection_pool.disconnect()
    app.close()


def test_a_certificate_that_is_trusted_is_enough(secured: TlsProxy, files: tuple[Path, Path]) -> None:
    before = secured.encrypted
    with connect(tls_url(secured.port, f"ssl_ca_certs={files[0]}")) as client:
        assert client.set("over", "tls")
    assert secured.encrypted == before + 1


def test_certificates_are_verified_unless_the_url_says_otherwise(secured: TlsProxy, files: tuple[Path, Path]) -> None:
    assert "CERTIFICATE_VERIFY_FAILED" in refusal(tls_url(secured.port))
    elsewhere = tls_url(secured.port, f"ssl_ca_certs={files[0]}", host="localhost")
    assert "Hostname mismatch" in refusal(elsewhere)
    for url in (f"{elsewhere}&ssl_check_hostname=false", tls_url(secured.port, "ssl_cert_reqs=none")):
        with connect(url) as client:
            assert client.ping()


def test_celery_speaks_tls_and_verifies_too(over: AppOver, secured: TlsProxy, files: tuple[Path, Path]) -> None:
    before = secured.encrypted
    assert_celery_works(over(tls_url(secured.port, f"ssl_ca_certs={files[0]}")))
    assert secured.encrypted >= before + 2
    untrusting = over(tls_url(secured.port))
    with untrusting.connection_for_write() as connection, pytest.raises(RedisError, match="CERTIFICATE_VERIFY_FAILED"):
        connection.connect()
    with pytest.raises(RedisError, match="CERTIFICATE_VERIFY_FAILED"):
        untrusting.backend.client.ping()


def test_sentinels_and_the_master_that_they_name_are_spoken_to_with_tls(
    over: AppOver, secured: TlsProxy, sentinel: Sentinel, files: tuple[Path, Path]
) -> None:
    with TlsProxy(files, sentinel.port) as proxy:
        url = sentinel_url(free_port(), proxy.port, options=f"&ssl=true&ssl_ca_certs={files[0]}")
        before = secured.encrypted
        with connect(url) as client:
            assert client.set("over", "sentinels")
        assert_celery_works(over(url))
        assert secured.encrypted >= before + 3
        assert proxy.encrypted >= 3


def test_clients_for_asyncio_speak_tls_to_the_same_servers(
    secured: TlsProxy, sentinel: Sentinel, files: tuple[Path, Path]
) -> None:
    async def ask(url: str) -> object:
        async with connect_async(url, retries=0) as client:
            await client.set("over", "asyncio")
            return await client.get("over")

    with TlsProxy(files, sentinel.port) as proxy:
        before = secured.encrypted
        named = sentinel_url(free_port(), proxy.port, options=f"&ssl=true&ssl_ca_certs={files[0]}")
        for url in (tls_url(secured.port, f"ssl_ca_certs={files[0]}"), named):
            assert asyncio.run(ask(url)) == b"asyncio"
        assert secured.encrypted == before + 2
    with pytest.raises(RedisError, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(ask(tls_url(secured.port)))


@pytest.mark.parametrize("urls", [[], ["unix:///x"], ["redis://a", "sentinel://b?master=m"], ["redis://a/1"]])
def test_a_server_outside_a_cluster_is_refused(urls: list[str]) -> None:
    with pytest.raises(RedisUrlError, match="servers of a cluster"):
        connect_cluster(urls)


def set_through(url: str, meanwhile: Callable[[], None]) -> None:
    with connect(url, timeout_s=0.5) as client:
        client.ping()
        meanwhile()
        assert client.set("which", "new")


def set_through_asyncio(url: str, meanwhile: Callable[[], None]) -> None:
    async def act() -> None:
        async with connect_async(url, timeout_s=0.5) as client:
            await client.ping()
            meanwhile()
            assert await client.set("which", "new")

    asyncio.run(act())


@pytest.mark.parametrize("act", [set_through, set_through_asyncio])
def test_a_command_that_the_old_master_never_answers_goes_to_the_new_one(
    act: Callable[[str, Callable[[], None]], None],
) -> None:
    folder = short_folder()
    with RedisServer(folder / "a", password=PASSWORD) as old, RedisServer(folder / "b", password=PASSWORD) as new:
        with Sentinel(folder, old.port) as sentinel:

            def fail_over() -> None:
                old.fall_silent()
                sentinel.point_to(new.port)

            act(sentinel_url(sentinel.port), fail_over)
        with new.client() as itself:
            assert itself.get("which") == "new"


@pytest.mark.parametrize("act", [set_through, set_through_asyncio])
def test_over_tls_a_command_that_the_old_master_never_answers_goes_to_the_new_one(
    act: Callable[[str, Callable[[], None]], None], files: tuple[Path, Path]
) -> None:
    folder = short_folder()
    with RedisServer(folder / "a", password=PASSWORD) as old, RedisServer(folder / "b", password=PASSWORD) as new:
        with (
            TlsProxy(files, old.port) as to_old,
            TlsProxy(files, new.port) as to_new,
            Sentinel(folder, to_old.port) as sentinel,
            TlsProxy(files, sentinel.port) as to_sentinel,
        ):

            def fail_over() -> None:
                old.fall_silent()
                sentinel.point_to(to_new.port)

            act(sentinel_url(to_sentinel.port, options=f"&ssl=true&ssl_ca_certs={files[0]}"), fail_over)
            assert all(proxy.encrypted for proxy in (to_old, to_new, to_sentinel))
        with new.client() as itself:
            assert itself.get("which") == "new"


def test_a_client_for_asyncio_retries_during_a_restart(tmp_path: Path) -> None:
    async def act(own: RedisServer) -> list[object]:
        async with connect_async(own.url) as client:
            await client.ping()
            own.kill()
            return list(await asyncio.gather(client.incr("n"), asyncio.to_thread(own.start)))

    with RedisServer(tmp_path / "redis") as own:
        assert asyncio.run(act(own)) == [1, None]


def test_errors_about_wrong_passwords_do_not_contain_them(server: RedisServer, sentinel: Sentinel) -> None:
    url = f"redis://:{quote(PASSWORD, safe='')}x@127.0.0.1:{server.port}"
    assert "invalid username-password pair" in refusal(url)
    away = free_port()
    wrong = sentinel_url(sentinel.port, away).replace("sentinel_password=", "sentinel_password=x")
    message = refusal(wrong)
    assert NAME in message
    assert not [secret for secret in (PASSWORD, SENTINEL_PASSWORD) if secret in message + refusal(url)]
    views = ask_sentinels(wrong)
    assert "password" in views[0].problem
    assert views[1] == SentinelView(f"127.0.0.1:{away}", problem=views[1].problem)
    assert "refused" in views[1].problem


def test_a_sentinel_without_the_named_master_is_reported(sentinel: Sentinel) -> None:
    (view,) = ask_sentinels(sentinel_url(sentinel.port).replace(NAME, "other"))
    assert view.problem == "knows no master 'other'"


def test_the_configured_passwords_are_not_shown(over: AppOver, sentinel: Sentinel) -> None:
    app = over(sentinel_url(sentinel.port, sentinel.port))
    shown = [
        repr(app.connection_for_write()),
        app.connection_for_write().as_uri(),
        app.backend.as_uri(),
        app.bugreport(),
        str(app.conf.table(with_defaults=True)),
    ]
    secrets = [form for secret in (PASSWORD, SENTINEL_PASSWORD) for form in (secret, quote(secret, safe=""))]
    assert not [text for text in shown for secret in secrets if secret in text]
