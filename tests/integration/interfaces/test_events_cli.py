"""`penstock events`, and the reasons that `penstock settings` shows."""

import json

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from pipeline.flows.documents.states import DocumentStatus
from pipeline.interfaces.cli.main import app
from pipeline.operations import events
from pipeline.storage.context import Context
from tasks import documents
from tests.support.documents import insert_document


def penstock(*arguments: str) -> str:
    with capture_logs():
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_events_are_listed_newest_first(context: Context) -> None:
    assert "penstock convert" in penstock("events")
    documents.pause(document_id := insert_document(context, DocumentStatus.PENDING))
    documents.cancel(document_id)
    listed = json.loads(penstock("events", "--json"))
    assert [event["type"] for event in listed] == ["document.cancelled", "document.paused"]
    assert "document.paused" in penstock("events", "--type", "document.paused", "--scope", document_id)
    assert "No event matches" in penstock("events", "--flow", "music")


def test_events_are_followed_as_they_come(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    insert_document(context, DocumentStatus.PENDING)
    documents.pause(insert_document(context, DocumentStatus.PENDING))
    monkeypatch.setattr(events, "follow", lambda **_: iter(events.after(0)))
    assert "document.paused" in penstock("events", "--follow")
    assert '"type": "document.paused"' in penstock("events", "--follow", "--json")


class TestLiveSettings:
    def test_why_a_setting_was_changed_is_shown_beside_it(self, context: Context) -> None:
        key = "api.requests_per_min"
        penstock("settings", "set", key, "600", "--reason", "a slow week")
        assert penstock("settings", "get", key) == "600\n"
        assert "a slow week" in penstock("settings", "list")
        penstock("settings", "unset", key, "--reason", "it is over")
        [setting] = [each for each in json.loads(penstock("settings", "list", "--json")) if each["key"] == key]
        assert (setting["is_default"], setting["reason"], setting["changed_by"]) == (True, "it is over", "command line")
