"""Providers and their keys are added, changed and tested in the console, by administrators only."""

import logging
import stat
import tomllib
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from pipeline.standalone.locks import supervisor_lock
from pipeline.standalone.supervisor import info_path
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context
from tests.integration.interfaces.api.conftest import Connect
from tests.support.provider_server import ProviderServer

PAGE = {"accept": "text/html"}
PROVIDERS = "/console/settings/providers"
SECRET = "sk-very-secret-7"


@pytest.fixture
def settings_env() -> dict[str, str]:
    return {"PENSTOCK_PROVIDERS__FIXED__BASE_URL": "http://127.0.0.1:9", "PENSTOCK_PROVIDERS__FIXED__MODEL": "m"}


@pytest.fixture
def file(context: Context) -> Path:
    """The configuration file, with a user's comment."""
    path = context.settings.data_dir / "penstock.toml"
    path.write_text('# by hand\nlog_level = "INFO"  # quiet\n')
    path.chmod(0o600)
    return path


def sent(client: TestClient, path: str = PROVIDERS, code: int = 200, **fields: Any) -> str:
    """Return the message of an action."""
    answer = client.post(path, data=fields, headers={**PAGE, "hx-request": "true"})
    assert answer.status_code == code, answer.text
    assert SECRET not in f"{answer.text} {answer.headers}"
    return unescape(answer.text)


def test_a_provider_is_added_tested_and_shown_without_its_key(
    api: TestClient, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with ProviderServer(api_key=SECRET) as service:
        whole: dict[str, Any] = {"name": "ai", "api_key": SECRET, "base_url": service.base_url, "model": "vision-1"}
        sent(api, **whole, input_price=1.5, output_price=6)
        text = file.read_text()
        assert text.startswith('# by hand\nlog_level = "INFO"  # quiet\n')
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        provider = tomllib.loads(text)["providers"]["ai"]
        assert provider["api_key"] == SECRET
        assert provider["prices"] == {"vision-1": {"input": 1.5, "output": 6}}
        page = api.get(PROVIDERS, headers=PAGE).text
        assert 'id="provider-ai"' in page
        assert "after a restart" in page
        assert SECRET not in page
        assert "ai: " in sent(api, f"{PROVIDERS}/ai/test")
        sent(api, name="ai", model="vision-2")
        assert tomllib.loads(file.read_text())["providers"]["ai"]["api_key"] == SECRET, "an empty key keeps the old one"
    assert "cannot be used" in sent(api, f"{PROVIDERS}/ai/test", 422), "no server listens there"
    assert SECRET not in caplog.text
    pages = ("/console/events", "/console/settings", "/console/settings/about", "/api/v1/settings", "/api/v1/about")
    assert SECRET not in str([api.get(path, headers=PAGE).text for path in pages])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"base_url": "ftp://x"}, "must be an http"),
        ({"base_url": "http://169.254.169.254/v1"}, "base_url"),
        ({"base_url": "http://metadata.google.internal"}, "base_url"),
        ({"base_url": f"http://user:{SECRET}@127.0.0.1"}, "leave out user"),
        ({"base_url": "http://127.0.0.1", "model": ""}, "name a model"),
        ({"base_url": "", "api_key": ""}, "needs a key"),
        ({"name": "local"}, "this machine itself"),
        ({"name": "fixed"}, "PENSTOCK_PROVIDERS__FIXED__"),
        ({"api_key": "a\nb"}, "control characters"),
        ({"input_price": "1"}, "give both prices"),
        ({"kind": "nodes", "base_url": "http://127.0.0.1"}, "gateway"),
    ],
)
def test_an_unusable_provider_is_refused_and_not_written(
    api: TestClient, file: Path, wrong: dict[str, str], message: str
) -> None:
    before = file.read_bytes()
    whole = {"name": "ai", "base_url": "http://127.0.0.1:9", "model": "m", "api_key": SECRET}
    assert message in sent(api, code=422, **{**whole, **wrong})
    assert file.read_bytes() == before


def test_a_stored_key_is_not_sent_to_another_address(api: TestClient, file: Path) -> None:
    sent(api, name="ai", base_url="http://127.0.0.1:9", model="m", api_key=SECRET)
    before = file.read_bytes()
    assert "enter the key as well" in sent(api, code=422, name="ai", base_url="http://127.0.0.1:10")
    assert file.read_bytes() == before


def test_only_administrators_see_and_change_providers(connect: Connect, file: Path) -> None:
    before, writes = file.read_bytes(), connect(Scope.WRITE)
    assert writes.get(PROVIDERS, headers=PAGE).status_code == 403
    for path in (PROVIDERS, f"{PROVIDERS}/fixed/test", f"{PROVIDERS}/restart"):
        assert writes.post(path, data={"name": "ai"}, headers=PAGE).status_code == 403
    assert connect(Scope.ADMIN).get(PROVIDERS, headers=PAGE).status_code == 200
    assert file.read_bytes() == before


def test_the_supervisor_restarts_workers(context: Context, api: TestClient) -> None:
    info_path(context.settings).write_text('{"pid": 1, "mode": "up"}')  # as a killed supervisor leaves it
    assert "restart them where you started them" in sent(api, f"{PROVIDERS}/restart", 422)
    marker = context.settings.data_dir / "restart"
    assert not marker.exists()
    with supervisor_lock(context.settings) as lock:
        assert lock.acquire()
        assert "finish their work or give it back" in sent(api, f"{PROVIDERS}/restart")
    assert marker.exists()
