"""`penstock models`, and `penstock doctor --provider`, which lets a provider read a known page."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from pipeline.interfaces.cli.main import app
from pipeline.operations import calls
from pipeline.providers.calls import CallFilter
from pipeline.providers.presets import PRESETS
from pipeline.standalone.provider_trial import HEADING, PARAGRAPH, TABLE
from pipeline.storage.context import Context
from tests.support.provider_server import ProviderServer

PIECES = [("title", f"# {HEADING}"), ("text", "\n".join(PARAGRAPH)), ("table", "\n".join(map(" ".join, TABLE)))]
TAGGED = "".join(
    f"<|ref|>{label}<|/ref|><|det|>[[100, {top}, 900, {top + 50}]]<|/det|>\n{text}\n\n"
    for top, (label, text) in zip((100, 200, 300), PIECES, strict=True)
)
BARE = "\n\n".join(text for _, text in PIECES)


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with ProviderServer(models=["deepseek-ai/DeepSeek-OCR-2"]) as server:
        yield server


@pytest.fixture
def settings_env(server: ProviderServer) -> dict[str, str]:
    return {
        "PENSTOCK_PROVIDERS__SEEK__BASE_URL": server.base_url,
        "PENSTOCK_PROVIDERS__SEEK__MODEL": "deepseek-ai/DeepSeek-OCR-2",
        "PENSTOCK_PROVIDERS__SEEK__PRICES": '{"*": {"input": 1, "output": 2}}',
    }


def shown(*arguments: str, code: int = 0) -> Any:
    with capture_logs():
        result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def trial(code: int) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in shown("doctor", "--provider", "seek", code=code)}


def test_a_provider_reads_the_known_page_in_one_recorded_call(context: Context, server: ProviderServer) -> None:
    server.script.picture_answer = lambda _: TAGGED
    checks = trial(code=0)
    assert {check["result"] for check in checks.values()} == {"ok"}
    assert "is listed" in checks["provider seek"]["found"]
    assert checks["blocks"]["found"] == "ref_det: 3 blocks, 3 with boxes"
    assert checks["words"]["found"].startswith("100%")
    (call,) = calls.list_calls(CallFilter(provider="seek"))
    assert (call.scope_id, call.status) == ("doctor", "ok")
    assert call.cost > 0

    server.script.picture_answer = lambda _: BARE
    reply = trial(code=1)["reply"]
    assert reply["result"] == "fail"
    assert "skip_special_tokens" in reply["advice"]
    assert len(calls.list_calls(CallFilter(provider="seek"))) == 2


def test_presets_are_listed_with_their_providers(context: Context) -> None:
    listed = shown("models")
    assert [preset["id"] for preset in listed] == [preset.id for preset in PRESETS]
    assert {preset["id"]: preset["providers"] for preset in listed if preset["providers"]} == {"deepseek-ocr": ["seek"]}
    assert shown("models", "lightonai/LightOnOCR-2-1B")["id"] == "lightonocr"
    for preset in PRESETS:
        text = CliRunner().invoke(app, ["models", preset.id]).stdout
        assert text.splitlines()[0].split() == ["preset", preset.id]
    table = CliRunner().invoke(app, ["models"]).stdout.splitlines()
    assert len(table) == len(PRESETS) + 1
    assert CliRunner().invoke(app, ["models", "nope"]).exit_code == 1
