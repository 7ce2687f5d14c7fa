"""Common parts of all pages: rights, headers, errors, messages of actions."""

import re
from datetime import timedelta

import pytest
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from pipeline.engine.rates import Rate
from pipeline.interfaces.console import addresses, session
from pipeline.interfaces.console.screens import ROUTERS
from pipeline.storage import api_keys, api_sessions
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.integration.interfaces.api.conftest import Connect

PAGE = {"accept": "text/html"}
BROWSER = {**PAGE, "origin": "http://127.0.0.1", "sec-fetch-site": "same-origin"}


def log_in(client: TestClient, secret: str, to: str = "/console/documents") -> None:
    answer = client.post("/console/login", data={"key": secret, "next": to}, headers=BROWSER, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, addresses.within(to))


def test_the_root_leads_to_the_console(api: TestClient) -> None:
    answer = api.get("/", headers=PAGE)
    assert answer.url.path == "/console/"
    assert "<h1>Overview</h1>" in answer.text


def test_every_page_has_a_policy_under_which_nothing_inline_runs(api: TestClient) -> None:
    answer = api.get("/console/", headers=PAGE)
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "script-src 'self'" in policy
    assert answer.headers["referrer-policy"] == "same-origin"
    assert not re.search(r"<script(?![^>]*src=)|<style| style=| on[a-z]+=", answer.text)


def test_browsers_cache_static_files_until_they_change(api: TestClient) -> None:
    page = api.get("/console/", headers=PAGE).text
    for address in re.findall(r'(?:src|href)="(/console/static/[^"]+)"', page):
        answer = api.get(address)
        assert answer.status_code == 200, address
        assert "immutable" in answer.headers["cache-control"]
    assert api.get("/console/static/../app.py").status_code == 404
    assert api.get("/console/static/%2e%2e/app.py").status_code == 404


def test_pages_are_compressed_and_streams_are_not(api: TestClient) -> None:
    assert api.get("/console/", headers=PAGE).headers["content-encoding"] == "gzip"
    assert "content-encoding" not in api.get("/api/v1/status").headers


def test_without_a_required_key_only_the_login_is_shown(context: Context, connect: Connect) -> None:
    client = connect(host="192.0.2.1")
    answer = client.get("/console/?q=a", headers=PAGE, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"].endswith("/console/login?next=/console/%3Fq%3Da")
    secret, key = api_keys.create(context, "desk", Scope.READ)
    log_in(client, secret)
    cookie = client.cookies.get("penstock_session")
    assert cookie
    assert secret not in cookie
    assert client.get("/console/", headers=PAGE).status_code == 200
    api_keys.revoke(context, key.id)
    assert client.get("/console/", headers=PAGE, follow_redirects=False).status_code == 303


def test_every_page_needs_a_key_and_every_action_the_right_to_change(connect: Connect, context: Context) -> None:
    outside, reader, administrator = connect(host="192.0.2.1"), connect(Scope.READ), connect(Scope.ADMIN)
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    addresses_by_method = [(method, re.sub(r"\{[^}]+\}", "1", r.path)) for r in routes for method in r.methods or ()]
    # A search changes nothing: it is a POST because it may cost money.
    actions = [path for method, path in addresses_by_method if method == "POST" and not path.endswith("/search")]
    for method, path in addresses_by_method:
        answer = outside.request(method, path, headers=BROWSER, follow_redirects=False)
        assert answer.status_code in {303, 401}, (method, path)
    refused = {path: reader.post(path, headers=BROWSER).status_code for path in actions}
    assert {path: status for path, status in refused.items() if status != 403} == {}
    context.settings.api.read_only = True
    refused = {path: administrator.post(path, headers=BROWSER).status_code for path in actions}
    assert {path: status for path, status in refused.items() if status != 403} == {}
    assert len(actions) > 40


def test_the_session_cookie_works_for_browsers_only(context: Context, connect: Connect) -> None:
    client = connect(host="192.0.2.1")
    secret, _ = api_keys.create(context, "desk", Scope.ADMIN)
    answer = client.post("/console/login", data={"key": secret}, headers=BROWSER, follow_redirects=False)
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert client.post("/console/logout", headers=PAGE).status_code == 403  # no header names the page of this form
    assert client.post("/api/v1/documents/actions/pause", json={"ids": []}).status_code == 403
    assert client.post("/api/v1/documents/actions/pause", json={"ids": []}, headers=BROWSER).status_code == 200
    evil = {**BROWSER, "origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    assert client.post("/console/logout", headers=evil).status_code == 403
    ended = client.post("/console/logout", headers=BROWSER, follow_redirects=False)
    assert ended.headers["clear-site-data"] == '"cache"', "the browser caches pictures of pages"
    assert client.get("/console/", headers=PAGE, follow_redirects=False).status_code == 303


def test_a_wrong_key_is_refused_and_attempts_are_limited(
    context: Context, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "WRONG_KEYS", Rate(5, 3600))
    client, (secret, _) = connect(host="192.0.2.1"), api_keys.create(context, "desk", Scope.READ)
    for _ in range(6):
        log_in(client, secret)  # takes no try
    client.cookies.clear()
    answer = client.post("/console/login", data={"key": "pstk_wrong"}, headers=BROWSER)
    assert answer.status_code == 401
    assert "Invalid key" in answer.text
    statuses = {client.post("/console/login", data={"key": f"no{n}"}, headers=BROWSER).status_code for n in range(6)}
    assert statuses == {401, 429}
    assert client.post("/console/login", data={"key": secret}, headers=BROWSER).status_code == 429
    # The API goes on to accept right keys: others may share the address.
    assert client.get("/api/v1/documents", headers={"x-api-key": secret}).status_code == 200


def test_login_redirects_to_console_pages_only(context: Context, connect: Connect) -> None:
    secret, _ = api_keys.create(context, "desk", Scope.READ)
    for to in ("https://evil.example", "//evil.example", "/\\evil.example"):
        log_in(connect(host="192.0.2.1"), secret, to)


def test_errors_are_pages_for_people_and_problems_for_programs(api: TestClient) -> None:
    answer = api.get("/console/nothing", headers=PAGE)
    assert answer.status_code == 404
    assert "<h1>Not found</h1>" in answer.text
    assert all(f'class="button" href="/console/{to}"' in answer.text for to in ("", "documents", "search"))
    assert api.get("/console/nothing", headers={"accept": "application/json"}).json()["code"] == "not_found"
    partial = api.get("/console/live?view=nothing", headers={**PAGE, "hx-request": "true"})
    assert partial.status_code == 404
    assert partial.text.startswith('<hx-partial hx-target="#said"')


def test_views_refuse_unknown_fields(api: TestClient) -> None:
    assert api.get("/console/live?view=overview&evil=1", headers=PAGE).status_code == 422


def test_a_session_in_an_address_is_refused(api: TestClient) -> None:
    assert api.get(f"/console/?a=pstw_{'a' * 30}").status_code == 400


def test_an_allowed_origin_cannot_use_a_session_cookie(context: Context, connect: Connect) -> None:
    context.settings.api.allowed_origins.append("http://other:3000")
    client = connect(host="192.0.2.1")
    secret, _ = api_keys.create(context, "desk", Scope.ADMIN)
    log_in(client, secret)
    other = {**PAGE, "origin": "http://other:3000", "sec-fetch-site": "same-site"}
    data = {"name": "stolen", "scope": "admin"}
    assert client.post("/console/settings/keys", data=data, headers=other).status_code == 403
    assert [key.name for key in api_keys.list_keys(context)] == ["desk"]


def test_an_invalid_referer_is_ignored(api: TestClient) -> None:
    assert api.get("/console/nothing", headers={**PAGE, "referer": "http://["}).status_code == 404


def test_a_form_of_many_parts_has_a_size_limit(connect: Connect) -> None:
    client = connect(host="192.0.2.1")
    parts = {f"f{number}": (None, "a" * 1_000_000) for number in range(6)}
    assert client.post("/console/login", files=parts, headers=BROWSER).status_code == 413
    assert client.post("/mcp", files=parts, headers=BROWSER).status_code == 401


def test_an_ended_session_ends_its_stream(context: Context) -> None:
    _, key = api_keys.create(context, "desk", Scope.READ)
    secret = api_sessions.begin(context, key, timedelta(days=1))
    session = api_sessions.authenticate(context, secret)
    assert session is not None
    assert api_sessions.is_still_usable(context, session[0])
    api_sessions.end(context, secret)
    assert not api_sessions.is_still_usable(context, session[0])
    assert api_sessions.authenticate(context, secret) is None
