"""While one key attacks the API, the API answers another key. The tests count the other key's answers."""

import http.client
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, cycle, product
from threading import Event

import pytest
from sqlalchemy import update

from pipeline.flows.documents.models import PAGES
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.storage import api_keys
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.support.cli import Cli, environment
from tests.support.documents import insert_document, pages
from tests.support.knowledge import add_base
from tests.support.redis_server import free_port

pytestmark = pytest.mark.slow
ENOUGH, WITHIN_S = 50, 60
"""Requests of the other key in sequence. Without limits each takes up to 25 s."""
AT_ONCE = VIEWED = 45
PAUSE_S = 5
"""A pause between two requests of an attacker, so that the cost of each request counts, not their number."""
PICTURES, BRACKETS = "![a" * 60_000 + "](x)" * 40_000, "![" * 200_000


@dataclass
class Api:
    """A running `penstock api` with an attacker's key and another key."""

    port: int
    cli: Cli
    attacker: str
    other: str
    answered: list[int] = field(default_factory=list)
    """Return the statuses of the attacker's answers."""

    def ask(self, key: str, method: str, path: str, body: bytes = b"") -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN_S)
        try:
            kind = {"content-type": "application/json", "accept": "application/json, text/event-stream, text/html"}
            connection.request(method, path, body or None, {"x-api-key": key, **kind})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    @contextmanager
    def attacked(self, attack: Callable[[], tuple[str, str, bytes]]) -> Iterator[None]:
        """Send requests of `attack` from several threads."""
        stop = Event()

        def go_on() -> None:
            while not stop.is_set():
                with suppress(OSError, http.client.HTTPException):
                    self.answered.append(self.ask(self.attacker, *attack()))
                stop.wait(PAUSE_S)

        with ThreadPoolExecutor(AT_ONCE) as threads:
            for _ in range(AT_ONCE):
                threads.submit(go_on)
            try:
                yield
            finally:
                stop.set()

    def check_other(self) -> None:
        """Check that the other key gets its answers in time."""
        until, done = time.monotonic() + WITHIN_S, 0
        while done < ENOUGH and time.monotonic() < until:
            with suppress(OSError, http.client.HTTPException):
                done += self.ask(self.other, "GET", "/api/v1/documents?limit=1") == 200
        assert done == ENOUGH


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    return sqlite_url


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_API__REQUIRE_KEY": "true"}


@pytest.fixture
def api(context: Context, settings_env: dict[str, str]) -> Iterator[Api]:
    folder, port = context.settings.data_dir, free_port()
    own = {
        "PENSTOCK_REDIS_URL": str(context.settings.effective_redis_url),
        "PENSTOCK_DATABASE_URL": f"sqlite:///{folder / 'penstock.db'}",
        "PENSTOCK_API__PORT": str(port),
    }
    cli = Cli(folder, folder, environment(folder, **own, **settings_env))
    attacker, other = (api_keys.create(context, name, Scope.WRITE)[0] for name in ("attacker", "other"))
    running = cli.start("api")
    try:
        running.wait_for(f"API: http://127.0.0.1:{port}")
        yield Api(port, cli, attacker, other)
    finally:
        cli.kill_everything()
        running.wait()


@pytest.mark.parametrize("text", [PICTURES, BRACKETS], ids=["pictures", "brackets"])
def test_pages_that_are_hard_to_render_delay_no_other_key(api: Api, context: Context, text: str) -> None:
    document_id = insert_document(context, DocumentStatus.COMPLETED, [PageStatus.COMPLETED] * VIEWED)
    with context.db.transaction() as session:
        for page in pages(context, document_id):
            session.execute(update(PAGES).where(PAGES.c.id == page.id).values(content=f"{page.page}\n\n{text}"))
    numbers = count()

    def view() -> tuple[str, str, bytes]:
        return "GET", f"/console/documents/{document_id}?page={next(numbers) % VIEWED + 1}", b""

    with api.attacked(view):
        api.check_other()
    assert {200} <= set(api.answered) <= {200, 429}


def test_json_that_is_hard_to_read_delays_no_other_key(api: Api, context: Context) -> None:
    paths = "/api/v1/knowledge-search", f"/api/v1/knowledge-bases/{add_base(context, 'manuals')}/items", "/mcp"
    names = json.dumps({str(number): 1 for number in range(360_000)}).encode()
    lists = b'{"x":[' + b"[]," * 190_000 + b"[]]}"
    numbers = b'{"ids":[' + b"1," * 1_900_000 + b"1]}"
    requests = cycle(product(paths, [names, lists, numbers]))

    def send() -> tuple[str, str, bytes]:
        return "POST", *next(requests)

    with api.attacked(send):
        api.check_other()
    assert {413} <= set(api.answered) <= {413, 429, 503}
