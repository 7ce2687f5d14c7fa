"""Every command that takes an id accepts a prefix that no other id shares."""

import json
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from pipeline.engine.errors import UserError
from pipeline.flows.documents.models import DOCUMENTS
from pipeline.interfaces.cli.main import app
from pipeline.storage import api_keys
from pipeline.storage.context import Context
from tasks import documents
from tests.support.knowledge import add_base, add_item
from tests.support.samples import text_pdf


def penstock(*arguments: str, code: int = 0) -> Result:
    with capture_logs():
        result = CliRunner().invoke(app, [*arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def shown(*arguments: str) -> Any:
    return json.loads(penstock(*arguments, "--json").stdout)


def refused(*arguments: str) -> str:
    error = penstock(*arguments, code=1).exception
    assert isinstance(error, UserError)
    return error.code


def test_prefixes_of_ids_are_accepted(context: Context, tmp_path: Path) -> None:
    document = documents.submit(text_pdf(tmp_path / "a.pdf", [["one"]]))
    assert shown("documents", "show", document.id[:6])["id"] == document.id
    with context.db.transaction() as session:
        for number in "12":
            row = {**vars(document), "id": f"abcdef000000000{number}", "submission_key": number}
            session.execute(DOCUMENTS.insert().values({name: row[name] for name in row if name in DOCUMENTS.c}))
    assert refused("documents", "show", "abcdef") == "ambiguous"
    assert shown("documents", "show", "abcdef0000000002")["id"] == "abcdef0000000002"
    assert refused("documents", "show", "") == "unknown_document"

    base = add_base(context, "manuals")
    item = add_item(context, base)
    assert shown("kb", "item", item[:6])["id"] == item
    assert shown("kb", "show", base[:6])["name"] == "manuals"
    other = add_base(context, base[:6])
    assert shown("kb", "show", base[:6])["id"] == other, "a name takes precedence over a prefix of an id"
    assert refused("kb", "show", "x") == "unknown_base"

    key = api_keys.create(context, "me", api_keys.Scope.READ)[1]
    assert refused("keys", "revoke", key.id[:3]) == "unknown_key", "a prefix this short may also be a name"
    assert key.id in penstock("keys", "revoke", key.id[:6]).stderr

    endpoint = shown("webhooks", "create", "https://example.com/hook")["endpoint"]["id"]
    assert shown("webhooks", "change", endpoint[:7], "--disable")["id"] == endpoint
    assert shown("webhooks", "deliveries", "--endpoint", endpoint[:7]) == []
    assert shown("calls", "list", "--scope", document.id[:6]) == []
