"""The API in this process, over a real database and a real Redis; no workers."""

from collections.abc import Callable, Iterator

import pytest
from starlette.testclient import TestClient

from pipeline.interfaces.api.app import create_app
from pipeline.storage import api_keys
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context

Connect = Callable[..., TestClient]


@pytest.fixture
def connect(context: Context) -> Iterator[Connect]:
    """Return a function that creates clients of an API on `host`, with a key of `scope` or without a key."""
    open_clients: list[TestClient] = []

    def make(scope: Scope | None = None, host: str = "127.0.0.1") -> TestClient:
        headers = (
            {"authorization": f"Bearer {api_keys.create(context, f'test {len(open_clients)}', scope)[0]}"}
            if scope
            else {}
        )
        client = TestClient(create_app(context, host), base_url="http://127.0.0.1", headers=headers)
        client.__enter__()
        open_clients.append(client)
        return client

    yield make
    for client in open_clients:
        client.__exit__(None, None, None)


@pytest.fixture
def api(connect: Connect) -> TestClient:
    """A client on this machine, without a key."""
    return connect()
