"""Resets (RST) of connections to Redis, at work and at rest: celery#10302, #10205, #8091.

In these issues a worker logs "Connection to broker lost", reconnects, and never consumes a message again.
"""

import os
import sys
from collections.abc import Iterator

import pytest

from tests.faults.flow import SQLITE, START_S, Flow
from tests.support.redis_server import RedisServer
from tests.support.stack import FLEET, Stack
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults
ROUNDS = int(os.environ.get("PENSTOCK_FAULTS_ROUNDS") or 2)
"""`PENSTOCK_FAULTS_ROUNDS=25` runs longer. Read at import, since tests run without the caller's settings."""
PAGES = 6


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[TcpProxy]:
    redis_server.start()
    redis_server.flush()
    with TcpProxy(redis_server.port) as way:
        yield way


@pytest.fixture
def redis_url(proxy: TcpProxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}/0"


def noticed(stack: Stack, times: int) -> bool:
    return all(stack[name].says("Connection to broker lost") >= times for name in FLEET[:3])


@SQLITE
def test_each_worker_consumes_messages_after_each_reset_of_its_connections(
    stack: Stack, flow: Flow, proxy: TcpProxy
) -> None:
    # One worker for each queue: a document ends only if all three consume messages.
    stack.start(*FLEET)
    for number in range(1, ROUNDS + 1):
        document_id = flow.submit(PAGES, f"{number}.pdf")
        flow.wait_for_calls(PAGES * (number - 1) + 2)
        assert proxy.cut()
        flow.wait_for_status(document_id)
        flow.assert_exactly_once(document_id)
        assert proxy.cut(), "connections at rest are reset, too"
        wait_until(lambda seen=number: noticed(stack, seen), START_S, "all workers have noticed")
    document_id = flow.submit(PAGES, "last.pdf")
    flow.wait_for_status(document_id)
    flow.assert_exactly_once(document_id)
    sys.stdout.write(f"{proxy.cuts} connections reset, {ROUNDS + 1} documents\n")  # shown by pytest -rP
