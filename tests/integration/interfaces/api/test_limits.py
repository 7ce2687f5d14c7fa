"""Limits of requests: host names, origins, sizes, rates and forms."""

import json
from collections.abc import Iterator
from threading import Event
from types import SimpleNamespace

import anyio
import pytest
from starlette.requests import Request
from starlette.testclient import TestClient
from starlette.types import Message

from pipeline.engine.rates import Rate, TooMany, take
from pipeline.interfaces.api.app import create_app
from pipeline.interfaces.http.bodies import Held
from pipeline.interfaces.http.json_bodies import Turns
from pipeline.operations.refusal import Refused
from pipeline.settings import ApiSettings
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tasks import knowledge
from tests.integration.interfaces.api.conftest import Connect
from tests.integration.interfaces.api.test_skeleton import DOCUMENTS, problem
from tests.support.redis_server import RedisServer
from tests.support.samples import Sheet, pdf_bytes
from tests.support.waiting import wait_until


class TestNames:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {
            "PENSTOCK_API__ALLOWED_HOSTS": '["desk.example.org"]',
            "PENSTOCK_API__ALLOWED_ORIGINS": '["https://other.example.org"]',
        }

    @pytest.mark.parametrize("host", ["evil.example.org", "127.0.0.1.evil.org", "", "a@127.0.0.1", "[::1", "10.0.0.1"])
    def test_other_host_names_are_refused(self, api: TestClient, host: str) -> None:
        problem(api.get(DOCUMENTS, headers={"host": host}), 421, "wrong_host")

    @pytest.mark.parametrize(
        "host", ["localhost:8484", "127.0.0.1", "[::1]:8484", "desk.example.org", "DESK.example.org."]
    )
    def test_own_host_names_are_accepted(self, api: TestClient, host: str) -> None:
        assert api.get(DOCUMENTS, headers={"host": host}).status_code == 200

    @pytest.mark.parametrize(
        "headers", [{"origin": "https://evil.example.org"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}]
    )
    def test_pages_of_other_sites_may_not_change_anything(self, api: TestClient, headers: dict[str, str]) -> None:
        act = f"{DOCUMENTS}/0123456789abcdef/cancel"
        problem(api.post(act, headers=headers), 403, "bad_origin")
        problem(api.post(act, headers={"origin": "http://127.0.0.1"}), 404, "unknown_document")
        problem(api.post(act, headers={"origin": "https://other.example.org"}), 404, "unknown_document")
        problem(api.get(DOCUMENTS, headers=headers), 403, "bad_origin")  # a GET may cost money, as a search does
        # A foreign form needs no allowed origin, and must not count as JSON.
        plain = {"content-type": "text/plain"}
        problem(
            api.post(f"{DOCUMENTS}/actions/delete", content=b'{"all_matching": true}', headers=plain), 422, "invalid"
        )

    def test_a_page_on_another_port_of_this_machine_is_another_site(self, api: TestClient) -> None:
        picture = {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
        problem(api.get(f"{DOCUMENTS}/search", params={"q": "x"}, headers=picture), 403, "bad_origin")
        own = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
        link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
        for headers in (own, link, {"sec-fetch-site": "none"}):
            assert api.get(DOCUMENTS, headers=headers).status_code == 200
        frame = {**link, "sec-fetch-dest": "iframe"}
        problem(api.get(DOCUMENTS, headers=frame), 403, "bad_origin")

    def test_pages_of_other_origins_get_no_cors_headers(self, api: TestClient) -> None:
        preflight = {"origin": "https://other.example.org", "access-control-request-method": "POST"}
        for answer in (api.options(DOCUMENTS, headers=preflight), api.get(DOCUMENTS, headers=preflight)):
            assert not [name for name in answer.headers if name.startswith("access-control")]


JSON = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
SECRET = f"pstk_{'A' * 43}"


@pytest.mark.parametrize(
    "place", [f"?api_key={SECRET}", f"?x=pstk%5F{'A' * 43}", f"/{SECRET}", f"?token=pstn_{'b-_' * 14}"]
)
def test_a_key_in_an_address_is_refused_and_not_logged(
    api: TestClient, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    detail = problem(api.request("BREW", f"{DOCUMENTS}{place}"), 400, "key_in_address")
    assert "revoke" in detail
    assert "A" * 43 not in detail + capsys.readouterr().out


@pytest.mark.parametrize("path", [DOCUMENTS, "/nowhere", "/healthz", f"{DOCUMENTS}?limit=0", "/metrics"])
def test_every_answer_has_security_headers(api: TestClient, path: str) -> None:
    headers = api.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["cross-origin-resource-policy"] == "same-origin"


def test_no_body_is_read_without_a_key(context: Context) -> None:
    answered: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("the API has read the body")

    async def send(message: Message) -> None:
        answered.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json"), (b"content-length", b"9")]
    path = f"{DOCUMENTS}/actions/delete"
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "http_version": "1.1",
        "scheme": "http",
        "root_path": "",
        "server": ("127.0.0.1", 80),
        "client": ("192.0.2.7", 9),
    }
    anyio.run(create_app(context, "0.0.0.0"), scope, receive, send)
    assert answered[0]["status"] == 401


class TestPrefix:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {"PENSTOCK_API__PREFIX": "penstock/"}

    def test_the_prefix_in_the_path_is_optional(self, api: TestClient) -> None:
        for path in (f"/penstock{DOCUMENTS}", DOCUMENTS):
            assert api.get(path).status_code == 200
        assert api.get("/penstock/openapi.json").json()["servers"] == [{"url": "/penstock"}]
        problem(api.get("/penstocks/healthz"), 404, "not_found")


@pytest.mark.parametrize("prefix", ["a b", "/a//b", "/a?b", "/../x y", "/<a>"])
def test_an_invalid_prefix_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix"):
        ApiSettings(prefix=prefix)


class TestQuotas:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {"PENSTOCK_API__REQUESTS_PER_MIN": "5", "PENSTOCK_API__UPLOAD_MB_PER_HOUR": "3"}

    def test_each_key_has_its_own_quota(self, connect: Connect) -> None:
        first, second = connect(Scope.READ), connect(Scope.READ)
        assert [first.get(DOCUMENTS).status_code for _ in range(5)] == [200] * 5
        refused = first.get(DOCUMENTS)
        problem(refused, 429, "too_many_requests")
        assert 1 <= int(refused.headers["retry-after"]) <= 13
        assert second.get(DOCUMENTS).status_code == 200

    def test_uploads_are_counted_while_they_come(self, connect: Connect, context: Context) -> None:
        client = connect(Scope.WRITE)
        problem(client.post(DOCUMENTS, files={"file": ("a.pdf", bytes(2_000_000))}), 415, "unsupported")
        problem(client.post(DOCUMENTS, files={"file": ("a.pdf", bytes(2_000_000))}), 429, "quota")
        assert not list(context.settings.upload_dir.iterdir())

    def test_without_redis_no_request_is_counted_and_reading_goes_on(
        self, connect: Connect, redis_server: RedisServer
    ) -> None:
        client = connect(Scope.READ)
        redis_server.kill()
        assert [client.get(DOCUMENTS).status_code for _ in range(8)] == [200] * 8
        refused = client.get("/readyz")
        assert (refused.status_code, refused.json()["checks"]["redis"]) == (503, "unavailable")
        assert refused.headers["retry-after"]
        assert client.get("/healthz").status_code == 200

    def test_a_full_redis_loses_no_submission_and_reading_goes_on(
        self, connect: Connect, redis_server: RedisServer
    ) -> None:
        client = connect(Scope.WRITE)
        redis_server.limit_memory(1)
        try:
            answer = client.post(DOCUMENTS, files={"file": ("a.pdf", pdf_bytes([Sheet()]))})
            assert answer.status_code == 202
            pages = [client.get(DOCUMENTS).json() for _ in range(8)]
            assert [page["items"][0]["id"] for page in pages] == [answer.json()["id"]] * 8
        finally:
            redis_server.limit_memory(0)


def test_a_bucket_refills_evenly(context: Context) -> None:
    rate = Rate(10, 1)
    take(context.redis, "me", rate, 10)
    with pytest.raises(TooMany) as refused:
        take(context.redis, "me", rate, 2)
    assert refused.value.wait_s is not None
    assert 0.05 < refused.value.wait_s <= 0.2
    with pytest.raises(TooMany) as never:
        take(context.redis, "me", rate, 11)
    assert never.value.wait_s is None

    def is_refilled() -> bool:
        try:
            take(context.redis, "me", rate, 2)
        except TooMany:
            return False
        return True

    wait_until(is_refilled, 60, "two units are refilled")


class TestSizes:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {"PENSTOCK_API__MAX_UPLOAD_MB": "1", "PENSTOCK_API__MAX_JSON_MB": "1"}

    def test_an_oversized_body_is_refused_by_its_head_or_while_it_arrives(
        self, api: TestClient, context: Context
    ) -> None:
        problem(api.post(DOCUMENTS, files={"file": bytes(3_000_000)}), 413, "too_large")

        def endless() -> Iterator[bytes]:
            for _ in range(100):
                yield bytes(100_000)

        raw = {"content-type": "application/octet-stream"}
        problem(api.post(DOCUMENTS, content=endless(), headers=raw), 413, "too_large")
        text = {"content-type": "application/json"}
        problem(api.post(f"{DOCUMENTS}/actions/cancel", content=endless(), headers=text), 413, "too_large")
        assert not list(context.settings.upload_dir.iterdir())


@pytest.mark.parametrize(
    "each",
    [b"[],", b'{"a":{}},', b"[[]],", b'"\\\\",1,', b"1,"],
    ids=["lists", "objects", "nested", "strings", "numbers"],
)
@pytest.mark.parametrize("path", [f"{DOCUMENTS}/actions/cancel", "/api/v1/knowledge-bases/{}/items", "/mcp"])
def test_json_with_too_many_elements_is_not_parsed(api: TestClient, path: str, each: bytes) -> None:
    path = path.format(knowledge.create_base("manuals").id)
    body = b'{"ids":[' + each * 21_000 + b"[]]}"
    detail = problem(api.post(path, content=body, headers=JSON), 413, "too_large")
    assert "names, lists, objects and items" in detail


def test_a_text_may_contain_any_number_of_json_delimiters(api: TestClient) -> None:
    body = json.dumps({"query": 'a" [{,:\\' * 50_000})
    assert "at most" in problem(api.post("/api/v1/knowledge-search", content=body, headers=JSON), 422, "invalid")


@pytest.mark.parametrize("place", ["body", "body.filter"])
def test_the_first_unknown_name_ends_the_validation(api: TestClient, place: str) -> None:
    names = {f"n{number}": 1 for number in range(9_000)}
    answer = api.post(f"{DOCUMENTS}/actions/cancel", json={"filter": names} if place == "body.filter" else names)
    problem(answer, 422, "invalid")
    assert [error["where"] for error in answer.json()["errors"]] == [f"{place}.n0"]


def test_large_bodies_are_read_one_at_a_time_of_each_caller() -> None:
    """While the API reads a body of one caller, this caller's next body waits, and another caller's is read."""
    turns, release = Turns(), Event()
    running: list[str] = []

    def work(body: bytes) -> None:
        running.append(body[:2].decode())
        assert release.wait(60)

    async def read_all() -> None:
        async with anyio.create_task_group() as tasks:
            for caller, name in (("a", b"a1"), ("a", b"a2"), ("b", b"b1")):
                request = Request({"type": "http", "state": {"caller": SimpleNamespace(id=caller)}})
                tasks.start_soon(turns.read, request, name + bytes(10_000), work)
            with anyio.fail_after(60):
                while len(running) < 2:
                    await anyio.sleep(0.01)
            await anyio.wait_all_tasks_blocked()
            assert sorted(running) == ["a1", "b1"]
            release.set()

    anyio.run(read_all)
    assert sorted(running) == ["a1", "a2", "b1"]


def test_one_caller_cannot_fill_the_memory_for_bodies() -> None:
    held = Held(most=16, each=4)
    held.add("a", 4)
    with pytest.raises(Refused) as own:
        held.add("a", 1)
    assert own.value.code == "too_many_requests"
    held.release("a", 1)
    for caller in "bcd":
        held.add(caller, 4)
    with pytest.raises(Refused) as busy:
        held.add("e", 1)
    assert busy.value.code == "busy"
    for caller, count in {"a": 4, "b": 4, "c": 4, "d": 4, "e": 1}.items():
        held.release(caller, count)
    assert not held.by_caller


def test_deep_and_odd_json_is_refused(api: TestClient) -> None:
    act, kind = f"{DOCUMENTS}/actions/cancel", {"content-type": "application/json"}
    for body in (b"[" * 200_000, b'{"ids": NaN}', b"\xff\xfe", b'{"filter": {"q": "\\ud800"}, "all_matching": true}'):
        answer = api.post(act, content=body, headers=kind)
        assert answer.status_code in {400, 413, 422}, body[:20]
        assert answer.headers["content-type"] == "application/problem+json"


def test_errors_do_not_reveal_what_only_the_log_contains(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.flows.documents import queries

    def breaks(*_: object, **__: object) -> None:
        raise RuntimeError("secret of the server")

    client = connect()
    monkeypatch.setattr(queries, "document", breaks)
    assert "secret" not in problem(client.get(f"{DOCUMENTS}/0123456789abcdef"), 500, "internal")

    def full(*_: object, **__: object) -> None:
        raise Refused("no space left on /secret/path", code="disk_full")

    monkeypatch.setattr(queries, "document", full)
    assert "secret" not in problem(client.get(f"{DOCUMENTS}/0123456789abcdef"), 507, "disk_full")


def test_while_the_database_is_away_callers_are_asked_to_retry(
    api: TestClient, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    context.db.patience_s = 0.1
    database = context.settings.data_dir / "penstock.db"
    context.db.dispose()
    database.rename(database.with_suffix(".away"))
    database.mkdir()
    answer = api.get(DOCUMENTS)
    assert answer.status_code in {500, 503}
    assert api.get("/readyz").json()["checks"]["database"] == "unavailable"
    database.rmdir()
    database.with_suffix(".away").rename(database)
    assert api.get(DOCUMENTS).status_code == 200


def test_the_openapi_document_describes_every_answer(api: TestClient) -> None:
    document = api.get("/openapi.json").json()
    assert "Problem" in document["components"]["schemas"]
    operations = [(path, operation) for path, methods in document["paths"].items() for operation in methods.values()]
    assert len({operation["operationId"] for _, operation in operations}) == len(operations)
    for path, operation in operations:
        assert operation["tags"], path
        assert operation.get("summary") or operation.get("description"), path
        if path.startswith(DOCUMENTS):
            assert {"401", "403", "422", "429", "503"} <= set(operation["responses"]), path
            assert operation["security"], path
    refused = api.patch(f"{DOCUMENTS}/0123456789abcdef")
    problem(refused, 405, "method_not_allowed")
    assert refused.headers["allow"] == "GET, DELETE"
