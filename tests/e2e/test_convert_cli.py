"""`penstock convert` on good input: its results, their places, its messages, and no page paid for twice."""

import json
import os
import shutil

import pypdfium2
import pytest

from tests.support.cli import Cli, new_pdf, plain
from tests.support.provider_server import Fault, ProviderServer
from tests.support.samples import picture_of, scanned_pdf


def test_result_and_manifest_are_written_to_the_current_folder(cli: Cli) -> None:
    new_pdf(cli.cwd / "report.pdf", pages=2)
    result = cli.run("convert", "report.pdf")
    assert (result.code, result.out) == (0, "")
    assert result.err == "report.pdf → report.md (2 pages)\n"
    assert "This is page 2" in (cli.cwd / "report.md").read_text()
    assert sorted(path.name for path in cli.cwd.iterdir()) == ["report.manifest.json", "report.md", "report.pdf"]


def test_a_repeated_command_converts_only_changes_and_keeps_files_of_the_user(cli: Cli) -> None:
    report = new_pdf(cli.cwd / "report.pdf")
    result = cli.cwd / "report.md"
    result.write_text("mine")
    refused = cli.run("convert", "report.pdf")
    assert (refused.code, result.read_text()) == (1, "mine")
    assert "does not come from `penstock convert`, and is kept: use --force to replace it" in refused.err
    assert cli.run("convert", "report.pdf", "--force").code == 0
    assert "This is page 1" in result.read_text()

    repeated = cli.run("convert", "report.pdf")
    assert (repeated.code, repeated.err) == (0, "report.md is up to date: nothing to do.\n")
    assert cli.run("convert", "--json", "report.pdf").documents()[0]["status"] == "UP_TO_DATE"
    new_pdf(report, pages=2)
    older = cli.run("convert", "report.pdf", "--keep")
    assert (older.code, older.err) == (0, "report.md is kept, but it is older than its source\n")
    assert cli.run("convert", "report.pdf").err == "report.pdf → report.md (2 pages)\n"
    assert "This is page 2" in result.read_text()
    assert cli.run("convert", "report.pdf", "--pages", "1").err == "report.pdf → report.md (1 page)\n"

    result.write_text("mine")
    edited = cli.run("convert", "report.pdf")
    assert (edited.code, result.read_text()) == (1, "mine")
    assert "report.md was edited, and is kept, but it was made with other options (pages): use --force" in edited.err


def test_several_formats_pages_and_tables_are_written_at_once_and_stay_up_to_date(cli: Cli) -> None:
    scanned_pdf(cli.cwd / "scan.pdf", ["Searchable words", "of a scan"])
    command = ("convert", "scan.pdf", "--format", "md,html", "--format", "txt,pdf", "--split", "pages")
    result = cli.run(*command, "--tables", "csv", "--no-page-markers")
    assert result.code == 0, result.err
    written = sorted(path.relative_to(cli.cwd).as_posix() for path in cli.cwd.rglob("*") if path.is_file())
    assert written == [
        "scan.html",
        "scan.manifest.json",
        "scan.md",
        "scan.pages/scan-0001.html",
        "scan.pages/scan-0001.md",
        "scan.pages/scan-0001.txt",
        "scan.pdf",
        "scan.searchable.pdf",
        "scan.txt",
    ]
    with pypdfium2.PdfDocument(cli.cwd / "scan.searchable.pdf") as document:
        assert "Searchable words" in document[0].get_textpage().get_text_range()
    assert "<!--" not in (cli.cwd / "scan.md").read_text()
    facts = json.loads((cli.cwd / "scan.manifest.json").read_text())
    assert (facts["searchable_pdf"]["pages"], facts["searchable_pdf"]["pdfa"]) == ([1], "2b")
    again = cli.run(*command, "--tables", "csv", "--no-page-markers")
    assert (again.code, again.err) == (0, "4 files: 4 up to date, nothing to do.\n")
    folder = cli.run("convert", ".", "-o", "texts")  # results are no inputs
    assert (folder.code, [path.name for path in (cli.cwd / "texts").glob("*.md")]) == (0, ["scan.md"])
    assert "several formats need a folder" in cli.run("convert", "scan.pdf", "--format", "md,txt", "-o", "-").err


def test_dash_sends_the_text_and_nothing_else_to_standard_output(cli: Cli) -> None:
    new_pdf(cli.cwd / "report.pdf", pages=3)
    result = cli.run("convert", "report.pdf", "-o", "-", "--pages", "3")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("<!-- Page 3 -->\n")
    assert "This is page 3" in result.out
    assert "This is page 1" not in result.out
    assert [path.name for path in cli.cwd.iterdir()] == ["report.pdf"]


@pytest.mark.parametrize(
    ("output", "written"),
    [("a/b/text.md", "a/b/text.md"), ("folder/", "folder/report.md"), ("there", "there/report.md")],
)
def test_output_names_a_file_or_a_folder(cli: Cli, output: str, written: str) -> None:
    (cli.cwd / "there").mkdir()
    new_pdf(cli.cwd / "report.pdf")
    assert cli.run("convert", "report.pdf", "-o", output).code == 0
    assert (cli.cwd / written).is_file()


def test_folders_are_converted_with_all_their_subfolders(cli: Cli) -> None:
    scans = cli.cwd / "scans"
    (scans / "deep" / "er").mkdir(parents=True)
    (scans / ".hidden").mkdir()
    first = new_pdf(scans / "a.pdf")
    shutil.copy(first, scans / "deep" / "er" / "same.pdf")
    shutil.copy(first, scans / ".hidden" / "no.pdf")
    picture_of(["Words in a picture"]).save(scans / "a.png")
    (scans / "notes.txt").write_text("no input")
    result = cli.run("convert", "scans", first, "-o", "texts")
    texts = cli.cwd / "texts"
    assert result.code == 0
    assert sorted(str(path.relative_to(texts)) for path in texts.rglob("*.md")) == [
        "a.md",
        "a.png.md",
        "deep/er/same.md",
    ]
    assert result.err.splitlines()[0] == "Left out 1 file of other types: scans/notes.txt."
    assert result.err.splitlines()[-1] == "3 files: 3 written."
    assert result.err.count(" → ") == 3, "one line for each file, also for files with the same content"

    picture_of(["A new picture"]).save(scans / "0.png")
    (texts / "a.md").write_text("mine")
    (scans / "deep" / "er" / "same.pdf").unlink()
    repeated = cli.run("convert", "scans", "-o", "texts")
    assert repeated.code == 0
    assert "Kept 1 result whose source is gone: texts/deep/er/same.md." in repeated.err
    assert repeated.err.splitlines()[-1] == "3 files: 1 written, 1 up to date, 1 kept."
    assert (texts / "a.md").read_text() == "mine"


def test_standard_input_is_converted_to_standard_output(cli: Cli) -> None:
    words = "BT /F1 24 Tf 72 700 Td (Out of the pipe) Tj ET"
    parts = [
        "<</Type/Catalog/Pages 2 0 R>>",
        "<</Type/Pages/Kids[3 0 R]/Count 1>>",
        "<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        f"<</Length {len(words)}>>stream\n{words}\nendstream",
        "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    objects = "".join(f"{number} 0 obj{part}endobj\n" for number, part in enumerate(parts, 1))
    pdf = f"%PDF-1.4\n{objects}trailer<</Root 1 0 R>>"
    piped = cli.run("convert", "-", stdin=pdf)
    assert (piped.code, "Out of the pipe" in piped.out) == (0, True)
    assert cli.run("convert", "-", "-o", "a.md", stdin=pdf).code == 0
    assert "Out of the pipe" in (cli.cwd / "a.md").read_text()


HOSTILE_NAMES = [
    "with spaces.pdf",
    "-rf.pdf",
    "文件 ünï.pdf",
    "new\nline.pdf",
    "[bold]not markup[/bold].pdf".replace("/", "\\"),
    "$(id) `id` 'quoted\".pdf",
    "é" * 125 + ".pdf",
    "escape\x1b[31m.pdf",
    "no-suffix",
    ".pdf",
    os.fsdecode(b"latin-\xe9.pdf"),
]


def test_every_file_name_that_a_system_allows_can_be_converted(cli: Cli) -> None:
    inputs = cli.cwd / "in"
    inputs.mkdir()
    for name in HOSTILE_NAMES:
        new_pdf(inputs / name)
    (inputs / "link.pdf").symlink_to(inputs / HOSTILE_NAMES[0])
    here = cli.at(inputs)
    result = here.run("convert", "--json", "-o", "../out", "--", *HOSTILE_NAMES, "link.pdf")
    assert result.code == 0, result.err
    outputs = [document["output"] for document in result.documents()]
    assert len(set(outputs)) == len(HOSTILE_NAMES) + 1
    assert all("This is page 1" in (inputs / output).read_text() for output in outputs)
    assert {document["input"] for document in result.documents()} == {*HOSTILE_NAMES, "link.pdf"}
    shown = here.run("documents", "list").out
    assert "\x1b" not in result.err + shown
    assert "new line.pdf" in shown


def test_same_file_is_paid_for_once(cli: Cli, provider: ProviderServer) -> None:
    new_pdf(cli.cwd / "report.pdf", pages=3)
    assert cli.run("convert", "report.pdf", "--provider", "ai").code == 0
    assert cli.run("convert", "report.pdf", "--provider", "ai", "-o", "again.md").code == 0
    assert cli.run("convert", "report.pdf", "--provider", "ai", "-o", "fresh.md", "--fresh").code == 0
    assert len(provider.records) == 3, "a fresh document takes its pages from the cache"
    assert cli.run("convert", "report.pdf", "--provider", "ai", "-o", "paid.md", "--fresh", "--no-cache").code == 0
    assert len(provider.records) == 6
    assert cli.run("convert", "report.pdf", "--provider", "ai", "--model", "vision-2", "-o", "other.md").code == 0
    assert len(provider.records) == 9
    texts = {(cli.cwd / f"{name}.md").read_text() for name in ("report", "again", "fresh", "paid", "other")}
    assert len(texts) == 1


def test_a_partial_result_has_its_own_exit_code_and_the_same_command_completes_it(
    cli: Cli, provider: ProviderServer
) -> None:
    new_pdf(cli.cwd / "report.pdf", pages=4)
    convert = ["convert", "report.pdf", "--provider", "ai"]
    provider.push(Fault(status=400), Fault(status=400))
    failed = cli.run(*convert)
    assert failed.code == 3
    assert "2 of 4 pages failed" in failed.err
    assert "--allow-partial" in failed.err
    assert not (cli.cwd / "report.md").exists()

    provider.push(Fault(status=400))
    partial = cli.run(*convert, "--allow-partial")
    assert partial.code == 3
    assert "1 of 4 pages failed" in partial.err
    assert "report.md: PARTIAL_FAILED" in partial.err
    assert (cli.cwd / "report.md").exists()

    assert cli.run(*convert).code == 0
    assert len(provider.records) == 7, "four calls at first, and one for each retried page"


def test_json_reports_every_input_in_the_same_shape(cli: Cli) -> None:
    new_pdf(cli.cwd / "good.pdf", pages=2)
    new_pdf(cli.cwd / "kept.pdf")
    (cli.cwd / "kept.md").write_text("mine")
    (cli.cwd / "bad.pdf").write_text("no PDF")
    result = cli.run("convert", "--json", "good.pdf", "kept.pdf", "bad.pdf")
    assert result.code == 1
    documents = {document["input"]: document for document in result.documents()}
    assert {name: document["status"] for name, document in documents.items()} == {
        "good.pdf": "COMPLETED",
        "kept.pdf": "KEPT",
        "bad.pdf": "REFUSED",
    }
    assert len({frozenset(document) for document in documents.values()}) == 1
    good = documents["good.pdf"]
    assert (good["output"], good["pages"], good["completed"], good["failed"]) == ("good.md", 2, 2, 0)
    assert documents["bad.pdf"]["id"] is None
    assert "not of a supported type" in documents["bad.pdf"]["error"]


def test_without_a_terminal_all_output_is_plain(cli: Cli) -> None:
    new_pdf(cli.cwd / "report.pdf")
    commands = (["convert", "report.pdf"], ["documents", "list"], ["status"], ["doctor"], ["--help"])
    for result in cli.run_all(commands):
        assert "\x1b" not in result.out + result.err
        assert "\r" not in result.out + result.err


def test_terminal_shows_the_progress_of_each_file(cli: Cli, provider: ProviderServer) -> None:
    for name in ("one.pdf", "two.pdf"):
        new_pdf(cli.cwd / name, pages=2)
    provider.configure({"latency_s": 0.5})
    code, written = cli.terminal("convert", "--provider", "ai", "one.pdf", "two.pdf")
    assert code == 0
    shown = plain(written)
    assert "0/2 files" in shown
    assert "/2 pages PROCESSING" in shown
    assert "━" in shown
    assert "one.pdf → one.md (2 pages)" in shown
    assert shown.rstrip().endswith("2 files: 2 written.")


def test_narrow_terminal_cuts_no_column_that_matters(cli: Cli) -> None:
    new_pdf(cli.cwd / "a-name-that-is-far-too-long-for-this-terminal.pdf")
    code, written = cli.terminal("convert", "a-name-that-is-far-too-long-for-this-terminal.pdf", columns=40)
    assert code == 0
    assert "COMPLETED" in plain(written)
    for columns in (40, 60):
        code, written = cli.terminal("documents", "list", "--limit", "1", columns=columns)
        header, row = plain(written).splitlines()
        assert row.split()[0] == cli.newest()
        assert "COMPLETED" in row
        assert "a-name-that" in row
        assert "PROGRESS" not in header, "a narrow table drops this column"


def test_no_color_is_respected(cli: Cli) -> None:
    new_pdf(cli.cwd / "report.pdf")
    _, coloured = cli.terminal("convert", "report.pdf")
    assert "\x1b[32m" in coloured
    _, written = cli.using(NO_COLOR="1").terminal("convert", "-f", "report.pdf")
    assert "\x1b[32m" not in written


def test_closed_pipe_causes_no_traceback(cli: Cli) -> None:
    new_pdf(cli.cwd / "report.pdf", pages=3)
    assert cli.run("convert", "report.pdf").code == 0
    result = cli.execute(
        ["bash", "-c", "penstock convert -o - report.pdf | head -c 5; penstock documents list | head -0"]
    )
    assert "Traceback" not in result.err


def test_help_shows_how_to_begin(cli: Cli) -> None:
    general, convert = cli.run_all((["--help"], ["convert", "--help"]))
    assert "penstock convert report.pdf" in general.out
    assert "penstock convert scans/" in convert.out
