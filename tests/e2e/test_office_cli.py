"""`penstock convert` on files that hold their text: nothing that markitdown finds is lost, and no model is paid."""

import re
import shutil
from collections import Counter
from pathlib import Path

from markitdown import MarkItDown
from openpyxl import load_workbook

from tests.support.cli import Cli, new_pdf
from tests.support.corpus import corpus_file
from tests.support.opendocuments import open_document
from tests.support.provider_server import ProviderServer

PAGES = {"docx": 1, "epub": 3, "pptx": 6, "xlsx": 2}


def words(text: str) -> Counter[str]:
    """Count the words of Markdown, without addresses, tags, and the escapes of signs."""
    return Counter(re.findall(r"\w+", re.sub(r"\]\([^)]*\)|</?u>", "]", text).replace("\\", "")))


def expected(path: Path) -> str:
    """Return what markitdown finds in a file; for a workbook its cells, since markitdown needs pandas for one."""
    if path.suffix == ".xlsx":
        sheets = load_workbook(path).worksheets
        return " ".join(str(cell) for sheet in sheets for row in sheet.values for cell in row if cell is not None)
    return re.sub(r"<!-- Slide number: \d+ -->", "", MarkItDown().convert(path).markdown)


def test_results_have_every_word_that_markitdown_finds(cli: Cli) -> None:
    folder = corpus_file("knowledge/test.docx").parent
    files = sorted(path for path in folder.iterdir() if path.suffix != ".pdf")
    result = cli.run("convert", "--json", *files, "-o", "texts")
    documents = {Path(document["input"]).name: document for document in result.documents()}
    assert documents.pop("random.bin")["status"] == "REFUSED"
    assert {document["status"] for document in documents.values()} == {"COMPLETED"}
    for name, document in documents.items():
        assert document["pages"] == PAGES.get(name.rpartition(".")[2], 1)
        lacking = words(expected(folder / name)) - words((cli.cwd / document["output"]).read_text())
        assert not lacking, name
    text = (cli.cwd / "texts" / "test.pptx.md").read_text()
    assert "<!-- Page 6 -->" in text
    assert cli.run("convert", folder / "test.pptx", "-o", "-", "--pages", "3").out.count("<!-- Page") == 1


def test_a_folder_yields_its_office_files_and_never_its_own_results(cli: Cli) -> None:
    pile = cli.cwd / "pile"
    pile.mkdir()
    shutil.copyfile(corpus_file("knowledge/test.docx"), pile / "letter.docx")
    (pile / "page.html").write_text("<html><body><h1>Title</h1></body></html>")
    (pile / "notes.md").write_text("# Mine")
    first = cli.run("convert", "pile", "-o", "pile")
    assert (first.code, (pile / "page.html.md").read_text()) == (0, "<!-- Page 1 -->\n\n# Title\n")
    assert "notes.md" in first.err
    assert "Left out 1 file of other types" in first.err
    second = cli.run("convert", "pile", "-o", "pile")
    assert "2 files: 2 up to date, nothing to do." in second.err
    assert cli.run("convert", "pile/notes.md", "-o", "pile/").code == 0
    assert (pile / "notes.md").read_text() == "# Mine"
    assert (pile / "notes.md.md").read_text() == "<!-- Page 1 -->\n\n# Mine\n"


def test_a_mixed_pile_pays_a_model_for_scans_only(cli: Cli, provider: ProviderServer) -> None:
    new_pdf(cli.cwd / "report.pdf")
    open_document(cli.cwd / "letter.odt", "text", "<text:p>Dear all</text:p>")
    result = cli.run("convert", "report.pdf", "letter.odt", "--provider", "ai")
    assert result.code == 0, result.err
    assert "letter.odt holds text, which this machine reads at no cost, without ai." in result.err
    assert len(provider.records) == 1
    assert "Dear all" in (cli.cwd / "letter.odt.md").read_text()
    assert '"provider": "local"' in (cli.cwd / "letter.odt.manifest.json").read_text()
    again = cli.run("convert", "report.pdf", "letter.odt", "--provider", "ai")
    assert "2 files: 2 up to date" in again.err
    retried = cli.run("documents", "retry", cli.newest(), "--provider", "ai")
    assert retried.code == 0, retried.err
    assert len(provider.records) == 1


def test_a_file_of_text_has_no_searchable_pdf_and_says_so_before_it_is_converted(cli: Cli) -> None:
    (cli.cwd / "table.csv").write_text("a,b\n1,2\n")
    refused = cli.run("convert", "table.csv", "--format", "pdf")
    assert (refused.code, refused.out) == (1, "")
    assert "table.csv is neither a PDF nor a picture, so it has no searchable PDF" in refused.err
    both = cli.run("convert", "table.csv", "--format", "md,pdf")
    assert both.code == 1
    assert (cli.cwd / "table.csv.md").exists()
