"""Live settings, keys, and the connection of other programs."""

import re
from html import unescape

import pytest
from starlette.testclient import TestClient

from pipeline.storage import api_keys
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tasks import queues
from tests.integration.interfaces.api.conftest import Connect

PAGE = {"accept": "text/html"}
SETTINGS, KEYS, CLIENTS = "/console/settings", "/console/settings/keys", "/console/settings/clients"
REFERENCE = "/console/settings/reference"
ABOUT = "/console/settings/about"
LIMITS = "provider.fake.limits"
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {
        "PENSTOCK_PROVIDERS__FAKE__BASE_URL": "http://127.0.0.1:9",
        "PENSTOCK_PROVIDERS__FAKE__MODEL": "m",
        "PENSTOCK_PROVIDERS__FAKE__LIMITS": "100/min",
    }


def sent(client: TestClient, path: str, code: int = 200, **fields: object) -> str:
    """Return the message of an action."""
    answer = client.post(path, data=fields, headers={**PAGE, "hx-request": "true"})
    assert answer.status_code == code, answer.text
    return unescape(answer.text)


def test_a_setting_is_changed_with_a_reason_and_reset(context: Context, api: TestClient) -> None:
    page = api.get(SETTINGS, headers=PAGE).text
    assert "<h2>Provider fake</h2>" in page
    assert "<b>Daily spend cap</b>" in page
    assert "is 10/s" in sent(api, f"{SETTINGS}/live/{LIMITS}", value="10/s", reason=HOSTILE)
    assert queues.setting(LIMITS).value == "10/s"
    page = api.get(SETTINGS, params={"q": "FAKE limits", "changed": "true"}, headers=PAGE).text
    assert page.count('class="setting"') == 1
    assert HOSTILE not in page
    assert "by testclient" in page
    assert "default 100/min" in page
    assert LIMITS in sent(api, f"{SETTINGS}/live/{LIMITS}", 422, value="often")
    assert queues.setting(LIMITS).value == "10/s"
    assert "100/min again" in sent(api, f"{SETTINGS}/live/{LIMITS}/reset", reason="it is over")
    assert queues.setting(LIMITS).is_default
    assert "No setting matches" in api.get(SETTINGS, params={"q": "nothing such"}, headers=PAGE).text
    assert "no live setting" in sent(api, f"{SETTINGS}/live/colour", 404, value="red")


def test_a_key_is_created_shown_once_and_revoked(context: Context, api: TestClient) -> None:
    empty = api.get(KEYS, headers=PAGE).text
    assert "This server asks for no key" in empty
    assert "No keys yet" in empty
    created = api.post(KEYS, data={"name": HOSTILE, "scope": "read", "expires_days": ""}, headers=PAGE)
    assert (created.status_code, created.headers["cache-control"]) == (201, "no-store")
    [secret] = re.findall(r"pstk_[A-Za-z0-9_-]{20,}", created.text)
    assert HOSTILE not in created.text
    [key] = api_keys.list_keys(context)
    assert (key.name, key.scope, key.expires_at) == (HOSTILE, Scope.READ, None)
    page = api.get(KEYS, headers=PAGE).text
    assert secret not in page
    assert HOSTILE not in page
    assert "is revoked" in sent(api, f"{KEYS}/{key.id}/revoke")
    assert api_keys.authenticate(context, secret) is None
    for wrong in ({"name": ""}, {"name": "x", "scope": "owner"}, {"name": "x", "expires_days": "-1"}):
        sent(api, KEYS, 422, **wrong)


def test_only_administrators_see_settings_and_keys(connect: Connect) -> None:
    writes, administers = connect(Scope.WRITE), connect(Scope.ADMIN)
    assert "for administrators" in writes.get(SETTINGS, headers=PAGE).text
    assert LIMITS not in writes.get(SETTINGS, headers=PAGE).text
    assert writes.get(KEYS, headers=PAGE).status_code == 403
    page = administers.get(KEYS, headers=PAGE).text
    assert "asks for no key" not in page
    assert "in use by you" in page


def test_snippets_name_this_server_and_its_authentication(connect: Connect) -> None:
    text = unescape(connect().get(CLIENTS, headers=PAGE).text)
    assert "curl -F file=@report.pdf 'http://127.0.0.1/api/v1/documents?wait=60'" in text
    assert "Bearer $PENSTOCK_KEY" not in text
    with_key = unescape(connect(Scope.READ).get(CLIENTS, headers=PAGE).text)
    assert '-H "Authorization: Bearer $PENSTOCK_KEY"' in with_key


class TestInReadOnlyMode:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {"PENSTOCK_API__READ_ONLY": "true", "PENSTOCK_API__PREFIX": "/penstock"}

    def test_everything_is_shown_and_no_change_is_offered(self, api: TestClient) -> None:
        for path in (SETTINGS, KEYS):
            page = api.get(f"/penstock{path}", headers=PAGE).text
            assert ">read-only</span>" in page
            assert "Save" not in page
            assert "Create a key" not in page
        assert "http://127.0.0.1/penstock/api/v1/documents" in unescape(
            api.get(f"/penstock{CLIENTS}", headers=PAGE).text
        )


def test_the_reference_has_a_page_for_every_operation(api: TestClient) -> None:
    listed = api.get(REFERENCE, headers=PAGE).text
    document = api.get("/openapi.json").json()
    known = [spec["operationId"] for methods in document["paths"].values() for spec in methods.values()]
    for operation in known:
        assert f"{REFERENCE}/{operation}" in listed
        answer = api.get(f"{REFERENCE}/{operation}", headers=PAGE)
        assert answer.status_code == 200, operation
    assert len(listed) < 100_000
    results = api.get(REFERENCE, params={"q": "webhooks replay"}, headers=PAGE).text
    assert "webhooks_replay_failed" in results
    assert "documents_submit" not in results
    assert "No operation matches" in api.get(REFERENCE, params={"q": HOSTILE}, headers=PAGE).text
    assert api.get(f"{REFERENCE}/nothing", headers=PAGE).status_code == 404


class TestWithDocumentation:
    @pytest.fixture
    def settings_env(self) -> dict[str, str]:
        return {"PENSTOCK_API__DOCS_URL": "https://docs.example.org/penstock/"}

    def test_the_reference_and_the_openapi_description_link_to_it(self, api: TestClient) -> None:
        assert 'href="https://docs.example.org/penstock/"' in api.get(REFERENCE, headers=PAGE).text
        assert api.get("/openapi.json").json()["externalDocs"] == {"url": "https://docs.example.org/penstock/"}


def test_only_administrators_see_its_health(context: Context, connect: Connect) -> None:
    reads, administers = connect(Scope.READ), connect(Scope.ADMIN)
    assert str(context.settings.data_dir) not in reads.get(ABOUT, headers=PAGE).text
    page = administers.get(ABOUT, headers=PAGE).text
    assert str(context.settings.data_dir) in page
    assert "Health" in page
    about = administers.get("/api/v1/about").json()
    assert about["folder"]["files"] > 0
    assert {check["name"] for check in about["checks"]} > {"disk", "database", "workers"}
    assert not any(check["name"].startswith("provider ") for check in about["checks"]), "no provider is called"
    assert reads.get("/api/v1/about").status_code == 403
