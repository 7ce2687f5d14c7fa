"""`penstock documents` without a stack: its list, and documents of the same name."""

import json
from pathlib import Path

from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from pipeline.flows.documents.states import DocumentStatus
from pipeline.interfaces.cli.main import app
from pipeline.storage.context import Context
from tasks import documents
from tests.support.documents import insert_document
from tests.support.samples import text_pdf


def penstock(*arguments: str, code: int = 0) -> Result:
    with capture_logs():
        result = CliRunner().invoke(app, ["documents", *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def listed(*arguments: str) -> list[str]:
    return [document["id"] for document in json.loads(penstock(*arguments, "--json").stdout)]


def test_documents_of_the_same_name_are_distinguished_and_lists_are_filtered(context: Context, tmp_path: Path) -> None:
    ids = {}
    for folder in ("north", "south"):
        (tmp_path / folder).mkdir()
        text = text_pdf(tmp_path / folder / "report.pdf", [[folder], ["two"], ["three"]])
        ids[folder] = documents.submit(text, page_range="2-3" if folder == "south" else "")
    assert ids["north"].source_path == str(tmp_path / "north" / "report.pdf")
    lines = penstock().stdout.splitlines()
    assert lines[0].split()[:6] == ["ID", "FILE", "STATE", "DONE", "OF", "PAGES"]
    south, north = (line.split() for line in lines[1:])
    assert south[:5] == [ids["south"].id, "report.pdf", "PENDING", "2-3", str(tmp_path / "south")]
    assert north[:4] == [ids["north"].id, "report.pdf", "PENDING", str(tmp_path / "north")]

    sent = insert_document(context, DocumentStatus.FAILED, filename="Invoice 7.pdf")
    assert "FOLDER" not in penstock("list", "--name", "invoice").stdout, "the document was uploaded"
    assert listed("list", "--name", "INVOICE") == [sent]
    assert listed("list", "--status", "failed", "--state", "paused") == [sent]
    assert listed("--status", "failed", "--name", "report") == []
    assert "unknown state 'lost'" in str(penstock("list", "--status", "lost", code=1).exception)

    assert "too short" in str(penstock("delete", "-y", sent[:3], code=1).exception)
    penstock("delete", "-y", sent[:6])
    assert listed("list", "--name", "invoice") == []


def test_a_document_names_the_reason_of_its_wait(context: Context) -> None:
    waits = insert_document(context)
    assert "why" in penstock("show", waits).stdout
    assert "No worker is running" in penstock("show", waits).stdout
    assert json.loads(penstock("show", waits, "--json").stdout)["reason"]["kind"] == "workers"
