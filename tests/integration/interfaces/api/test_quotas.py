"""The quotas of a key: pages, megabytes and money over time, and requests at once."""

import base64
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime, timedelta
from threading import Event
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import anyio
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from sqlalchemy import update
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from pipeline.engine import accounts, traces
from pipeline.engine.accounts import CALLER
from pipeline.engine.transaction import Tx
from pipeline.flows.documents.models import DOCUMENTS as ROWS
from pipeline.flows.documents.models import PAGES
from pipeline.flows.documents.states import DocumentStatus, PageStatus
from pipeline.interfaces import compatibility as compat
from pipeline.interfaces import rest as v1
from pipeline.interfaces.http.bodies import BodyLimits
from pipeline.interfaces.http.dependencies import may_spend
from pipeline.interfaces.http.guard import check_same_site
from pipeline.interfaces.rest import health
from pipeline.operations.quotas import AtOnce, Quotas
from pipeline.operations.refusal import Refused
from pipeline.reading.sandbox.limits import Unwanted
from pipeline.settings import ApiSettings
from pipeline.storage import api_keys
from pipeline.storage.api_keys import Scope as KeyScope
from pipeline.storage.context import Context
from tests.integration.interfaces.api.conftest import Connect
from tests.integration.interfaces.api.test_skeleton import DOCUMENTS, problem
from tests.support.calls import call_row
from tests.support.documents import insert_document
from tests.support.waiting import wait_until

FAILED = [PageStatus.COMPLETED, PageStatus.FAILED]


def paid(context: Context, scope_id: object, cost: float, **values: Any) -> None:
    """Record a recent call of an AI service."""
    row = call_row("openai", context.db.now(), scope_id=str(scope_id), cost=cost, call_id=uuid4().hex, **values)
    context.db.run(lambda session: traces.record(session, row))


def retry(client: TestClient, document_id: str) -> Any:
    """Let a page fail, and retry it."""
    with context_of(client).db.transaction() as session:
        failed = {"status": DocumentStatus.PARTIAL_FAILED, "failed_count": 1}
        session.execute(update(ROWS).where(ROWS.c.id == document_id).values(**failed))
        session.execute(update(PAGES).where(PAGES.c.document_id == document_id).values(status=PageStatus.FAILED))
    return client.post(f"{DOCUMENTS}/{document_id}/retry-failed")


def context_of(client: TestClient) -> Context:
    state_context: Context = client.app.state.context  # type: ignore[attr-defined]
    return state_context


class TestMoney:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {"PENSTOCK_API__SPEND_PER_DAY": "1"}

    def test_each_key_has_its_own_cap_and_the_last_requester_pays(self, connect: Connect, context: Context) -> None:
        first, second = connect(KeyScope.WRITE), connect(KeyScope.WRITE)
        document_id = insert_document(context, DocumentStatus.PARTIAL_FAILED, FAILED)
        paid(context, document_id, 50)  # before the first request
        assert retry(first, document_id).status_code == 202
        paid(context, document_id, 0.75)
        assert retry(first, document_id).status_code == 202, "a retry does not reset the spend"
        paid(context, document_id, 0.5)
        refused = retry(first, document_id)
        detail = problem(refused, 429, "quota")
        assert "1.25" in detail
        tomorrow = datetime.now().astimezone().replace(hour=0, minute=0) + timedelta(days=1)
        assert f"before {tomorrow:%Y-%m-%d %H:%M} ({tomorrow:%Z}, the server's local time)" in detail
        assert 0 < int(refused.headers["retry-after"]) <= 86_400
        problem(first.post(DOCUMENTS, files={"file": ("a.pdf", b"%PDF")}), 429, "quota")
        assert retry(second, document_id).status_code == 202
        paid(context, document_id, 0.5)
        assert retry(second, document_id).status_code == 202

    def test_searches_and_frames_count(self, connect: Connect, context: Context) -> None:
        client = connect(KeyScope.WRITE)
        key = api_keys.list_keys(context)[-1].id
        CALLER.set(key)
        for cost, flow, item in ((0.4, "music", "search"), (0.4, "screenshots", "7"), (0.4, "knowledge", "search")):
            Quotas(context).check_spending(key)

            def ask(session: Tx, flow: str = flow, item: str = item) -> None:
                accounts.admit(session, flow, {item: []}, unit="1")

            context.db.run(ask)
            paid(context, item, cost, flow=flow)
            paid(context, item + "0", 90, flow=flow)
        CALLER.set("")
        for path in ("/api/v1/music/search?q=rain", "/api/v1/screenshots/search?q=rain"):
            problem(client.get(path), 429, "quota")
        free = client.post("/api/v1/knowledge-search", json={"query": "rain"})
        assert free.status_code == 200, "no base has vectors that a provider makes"

    def test_the_cap_can_be_changed_while_it_runs(self, connect: Connect, context: Context) -> None:
        client = connect(KeyScope.ADMIN)
        document_id = insert_document(context, DocumentStatus.PARTIAL_FAILED, FAILED)
        assert retry(client, document_id).status_code == 202
        paid(context, document_id, 5)
        problem(retry(client, document_id), 429, "quota")
        problem(client.put("/api/v1/settings/api.spend_per_day", json={"value": "-1"}), 422, "bad_value")
        assert client.put("/api/v1/settings/api.spend_per_day", json={"value": "9.5"}).status_code == 200
        wait_until(lambda: retry(client, document_id).status_code == 202, 60, "the new cap is in force")


class TestMegabytes:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {"PENSTOCK_API__UPLOAD_MB_PER_HOUR": "3"}

    def test_files_within_a_request_count(self, connect: Connect, context: Context) -> None:
        client = connect(KeyScope.WRITE)
        source = {"kind": "file", "filename": "a.bin", "base64_string": base64.b64encode(bytes(1_500_000)).decode()}
        body = {"sources": [source]}
        problem(client.post("/v1/convert/source/async", json=body), 415, "unsupported")
        problem(client.post("/v1/convert/source/async", json=body), 429, "quota")
        assert not list(context.settings.upload_dir.glob("incoming-*"))


FREE = {
    "cancel",
    "pause",
    "resume",
    "stop",
    "estimate",
    "sync",
    "remerge",
    "promote",
    "act_on_many",
    "act_on_items",
    "search_base",
    "search_bases",
    "create_base",
    "edit_base",
    "recover",
    "recover_all",
    "dismiss",
    "open_breaker",
    "close_breaker",
    "create_endpoint",
    "change_endpoint",
    "test_endpoint",
    "replay_range",
    "replay_delivery",
    "replay_dead_letter",
    "create_token",
    "revoke_token",
    "drain_node",
    "revoke_node",
    "free_node",
    "cancel_job",
    "change",
    "switch_source",
    "create_key",
    "revoke_key",
    "replay_failed",
    "exclude",
    "exchange_secret",
    "convert_batch",
}
"""Changing endpoints that never spend, or check spending themselves."""


def asks(dependant: Dependant, check: Any = may_spend) -> bool:
    return dependant.call is check or any(asks(child, check) for child in dependant.dependencies)


def test_every_spending_endpoint_checks_the_cap() -> None:
    routes = [
        route for router in (*v1.ROUTERS, *compat.ROUTERS) for route in router.routes if isinstance(route, APIRoute)
    ]
    changing = [route for route in routes if (route.methods or set()) & {"POST", "PUT", "PATCH"}]
    careless = {route.name for route in changing if not asks(route.dependant)}
    assert careless == FREE
    assert "retrieve" in {route.name for route in routes if asks(route.dependant)}
    # These operations check spending themselves: `test_searches_and_frames_count` calls both.
    searches = {route.path for route in routes if asks(route.dependant, check_same_site)}
    assert searches == {"/music/search", "/screenshots/search"}


def test_one_caller_gets_half_of_all_places() -> None:
    uploads = AtOnce(4, "uploads")
    with ExitStack() as held:
        held.enter_context(uploads.one("greedy", places=9))
        with pytest.raises(Refused) as own, uploads.one("greedy"):
            pass
        for caller in ("modest", "another"):
            held.enter_context(uploads.one(caller))
        with pytest.raises(Refused) as all_callers, uploads.one("last"):
            pass
    assert (own.value.code, all_callers.value.code, uploads.now) == ("too_many_requests", "busy", 0)


def test_of_those_that_wait_the_caller_with_the_fewest_places_goes_first() -> None:
    pool, order, waits = AtOnce(4, "reads", wait_s=60, waiting=8), list[str](), lambda: pool._waiting

    def read(caller: str) -> None:
        with pool.one(caller):
            order.append(caller)

    with ExitStack() as held, ThreadPoolExecutor(4) as threads:
        for caller in ("a", "b", "b"):
            held.enter_context(pool.one(caller))
        last = pool.one("c")
        last.__enter__()
        for number, caller in enumerate(["a", "a", "new"], 1):
            threads.submit(read, caller)
            wait_until(lambda number=number: len(waits()) == number, 60, "it waits")
        with pytest.raises(Unwanted), pool.one("left", lambda: False):
            pass
        last.__exit__(None, None, None)
        wait_until(lambda: order, 60, "the first begins")
        assert order[0] == "new"
    assert (pool.now, waits()) == (0, [])


def test_bodies_under_way_have_a_memory_limit() -> None:
    """The limit is 16 times the largest body: it refuses three of 20 bodies that pause before their end."""
    limits, refused, waiting = BodyLimits(read_all, ApiSettings(max_json_mb=1)), [], 0

    async def send_part(caller: int, ended: anyio.Event) -> None:
        nonlocal waiting
        scope = {"type": "http", "headers": [], "state": {"caller": SimpleNamespace(id=f"key-{caller}")}}
        blocks = iter([bytes(100_000)] * 9)

        async def receive() -> Message:
            nonlocal waiting
            if (block := next(blocks, None)) is not None:
                return {"type": "http.request", "body": block, "more_body": True}
            waiting += 1
            await ended.wait()
            return {"type": "http.request", "body": b"", "more_body": False}

        try:
            await limits(scope, receive, unsent)
        except Refused as error:
            refused.append(error.code)
        if waiting + len(refused) == 20:
            ended.set()

    async def many() -> None:
        ended = anyio.Event()
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(send_part, number, ended)

    anyio.run(many)
    assert refused == ["busy"] * 3
    assert not limits._held.by_caller


async def read_all(_scope: Scope, receive: Receive, _send: Send) -> None:
    while (await receive()).get("more_body"):
        pass


async def unsent(_: Message) -> None:
    return


def test_simultaneous_readiness_requests_share_one_check(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    checks, go, real_check = 0, Event(), health._check

    def check(context: Context) -> health.Readiness:
        nonlocal checks
        checks += 1
        go.wait(60)
        return real_check(context)

    monkeypatch.setattr(health, "_check", check)
    client = connect(host="0.0.0.0")
    with ThreadPoolExecutor(6) as pool:
        responses = [pool.submit(client.get, "/readyz") for _ in range(6)]
        wait_until(lambda: checks == 1, 60, "one request checks")
        assert client.get("/healthz").status_code == 200
        go.set()
        assert {response.result().status_code for response in responses} == {200}
    assert checks == 1
