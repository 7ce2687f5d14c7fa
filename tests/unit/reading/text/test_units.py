"""Files that hold their text as documents: their types, their pages, and what is refused."""

import io
import zipfile
from email.message import EmailMessage
from pathlib import Path

import pytest
from openpyxl import Workbook

from pipeline.engine.errors import UserError
from pipeline.reading.files.filetype import MIME_TYPES, TEXT_TYPES
from pipeline.reading.text import units
from pipeline.settings import DocumentSettings
from tests.support.corpus import corpus_file
from tests.support.opendocuments import open_document, slide

LIMITS = DocumentSettings()
ODT = """<text:h text:outline-level="2">A <text:span text:style-name="B">bold</text:span> title</text:h>
<text:p>One<text:s text:c="2"/>two<text:line-break/>three<text:note><text:note-citation>1</text:note-citation>
<text:note-body><text:p>below</text:p></text:note-body></text:note></text:p>
<text:list text:style-name="N"><text:list-item><text:p>first</text:p></text:list-item></text:list>
<table:table><table:table-header-rows><table:table-row><table:table-cell><text:p>Name</text:p></table:table-cell>
<table:table-cell><text:p>Sum</text:p></table:table-cell></table:table-row></table:table-header-rows><table:table-row>
<table:table-cell><text:p>Ada</text:p></table:table-cell><table:table-cell><text:p>7</text:p></table:table-cell>
</table:table-row></table:table><text:p><text:a xlink:href="https://example.org/">a link</text:a></text:p>
<text:tracked-changes><text:p>deleted</text:p></text:tracked-changes>
<office:annotation><text:p>remark</text:p></office:annotation>"""


def pages(path: Path, name: str = "") -> tuple[str, list[str]]:
    """Return the type and the texts of a file's pages."""
    info = units.inspect(path, name or path.name, LIMITS)
    texts = units.pages_in(info.texts)
    assert info.pages == len(texts)
    return info.type, texts


def refusal(path: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        units.inspect(path, path.name, LIMITS)
    return caught.value


def written(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.fixture
def workbook(tmp_path: Path) -> Path:
    book = Workbook()
    book.active.title = "Prices"
    for row in (["Prices of 2026"], [], ["Name", None, "Price"], ["a|b", None, 1.5], ["c\nd", None, 2.0], [], ["x", 1]):
        book.active.append(row)
    book.create_sheet("Empty")
    book.create_sheet("Last").append(["only"])
    book.save(tmp_path / "prices.xlsx")
    return tmp_path / "prices.xlsx"


def test_a_sheet_is_a_page_with_its_tables(workbook: Path):
    kind, (first, second, third) = pages(workbook)
    assert kind == "xlsx"
    assert first == (
        "## Prices\n\nPrices of 2026\n\n| Name | Price |\n| --- | --- |\n| a\\|b | 1.5 |\n| c d | 2 |\n\n"
        "| x | 1 |\n| --- | --- |"
    )
    assert (second, third) == ("## Empty", "## Last\n\nonly")


def test_a_text_of_opendocument_keeps_headings_lists_tables_links_and_notes(tmp_path: Path):
    kind, (text,) = pages(open_document(tmp_path / "a.odt", "text", ODT))
    assert kind == "odt"
    assert "## A **bold** title" in text
    assert "1. first" in text
    assert "| Name | Sum |\n| --- | --- |\n| Ada | 7 |" in text
    assert "[a link](https://example.org/)" in text
    assert "three[1]" in text
    assert text.endswith("[1] below")
    assert "deleted" not in text
    assert "remark" not in text


def test_a_slide_of_opendocument_is_a_page(tmp_path: Path):
    body = slide("First", "Point") + slide("", "") + slide("Third", "More")
    kind, texts = pages(open_document(tmp_path / "a.odp", "presentation", body))
    assert kind == "odp"
    assert [text.split() for text in texts] == [["#", "First", "Point"], [], ["#", "Third", "More"]]


def test_a_sheet_of_opendocument_is_a_page(tmp_path: Path):
    cells = "".join(
        f'<table:table-cell office:value-type="string"><text:p>{name}</text:p></table:table-cell>' for name in "ab"
    )
    body = "".join(
        f'<table:table table:name="{name}"><table:table-row>{cells}</table:table-row></table:table>'
        for name in ("S", "T")
    )
    kind, texts = pages(open_document(tmp_path / "a.ods", "spreadsheet", body))
    assert (kind, texts) == ("ods", [f"## {name}\n\n| a | b |\n| --- | --- |" for name in "ST"])


def test_an_email_has_its_facts_its_html_and_the_names_of_attachments(tmp_path: Path):
    mail = EmailMessage()
    mail["Subject"], mail["From"], mail["To"] = "Übersicht", "Ada <ada@example.org>", "bob@example.org"
    mail.set_content("plain words")
    mail.add_alternative("<h2>Sum</h2><table><tr><th>a</th></tr><tr><td>7</td></tr></table>", subtype="html")
    mail.add_attachment(b"%PDF-1.7", maintype="application", subtype="pdf", filename="bill.pdf")
    kind, (text,) = pages(written(tmp_path / "a.eml", mail.as_bytes()))
    assert kind == "eml"
    assert text.startswith("# Übersicht\n\n**From:** Ada \\<ada@example.org>  \n**To:** bob@example.org")
    assert "**Attachments:** bill.pdf" in text
    assert "## Sum" in text
    assert "| 7 |" in text
    assert "plain words" not in text


def test_a_delivered_email_needs_no_suffix(tmp_path: Path):
    content = "Return-Path: <a@b>\nReceived: from x\nSubject: Hello\n\nDear all\n"
    assert pages(written(tmp_path / "stored", content))[0] == "eml"


@pytest.mark.parametrize(
    ("name", "content", "kind", "text"),
    [
        ("a.md", "# Title\n\ntext", "md", "# Title\n\ntext"),
        ("a.txt", "Größe".encode("cp1252") * 30, "txt", "Größe" * 30),
        ("a.csv", "Name;Sum\nä;1\n", "csv", "| Name | Sum |\n| --- | --- |\n| ä | 1 |"),
        (
            "tricks.md",
            "A PDF begins with %PDF-1.7, says this text.",
            "md",
            "A PDF begins with %PDF-1.7, says this text.",
        ),
        (
            "page.pdf",
            "<!doctype html><html><body><nav><a href='/'>Home</a></nav><h1>T</h1>",
            "html",
            "Home\n\n# T",
        ),
    ],
)
def test_texts_are_read_by_their_content(tmp_path: Path, name: str, content: bytes | str, kind: str, text: str):
    assert pages(written(tmp_path / "stored", content), name) == (kind, [text])


def test_a_wrong_suffix_is_read_by_content(workbook: Path):
    assert pages(workbook, "prices.docx")[0] == "xlsx"
    assert pages(workbook, "stdin")[0] == "xlsx"


@pytest.mark.parametrize(
    ("name", "count"), [("test.docx", 1), ("test.epub", 3), ("test.pptx", 6), ("test.xlsx", 2), ("test_rss.xml", 1)]
)
def test_real_files_have_slides_sheets_and_chapters_as_pages(name: str, count: int):
    kind, texts = pages(corpus_file(f"knowledge/{name}"))
    assert kind in name
    assert len(texts) == count
    assert all(texts)


@pytest.mark.parametrize("name", ["random.bin", "a", "a.py", "a.json", "random.md", "random.csv", "a.txt"])
def test_what_is_not_a_document_is_unsupported(tmp_path: Path, name: str):
    contents = {"a": b"just words", "a.py": b"print(1)\n", "a.json": b"{}"}
    content = contents.get(name, bytes(range(256)) * 20)
    assert refusal(written(tmp_path / name, content)).code == "unsupported"


def test_bombs_and_encrypted_and_damaged_files_are_refused(tmp_path: Path):
    bomb = tmp_path / "bomb.docx"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "")
        archive.writestr("word/document.xml", b" " * 20_000_000)
    assert refusal(bomb).code == "too_large"
    manifest = "<manifest:file-entry><manifest:encryption-data/></manifest:file-entry>"
    locked = open_document(tmp_path / "locked.odt", "text", ODT, manifest=manifest)
    assert refusal(locked).code == "encrypted"
    package = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le")
    assert refusal(written(tmp_path / "locked.xlsx", package)).code == "encrypted"
    assert refusal(open_document(tmp_path / "cut.odt", "text", "<text:p>")).code == "corrupt"
    assert refusal(written(tmp_path / "cut.docx", b"PK\x03\x04 cut off")).code == "corrupt"
    repeated = (
        '<table:table><table:table-row><table:table-cell table:number-columns-repeated="999999999">'
        "<text:p>x</text:p></table:table-cell></table:table-row></table:table>"
    )
    assert len(pages(open_document(tmp_path / "wide.odt", "text", repeated))[1][0]) < 20_000


def test_a_book_of_two_chapters_follows_its_spine(tmp_path: Path):
    container = (
        '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="OEBPS/a.opf"/></rootfiles></container>'
    )
    items = "".join(f'<item id="{n}" href="c%20{n}.xhtml" media-type="application/xhtml+xml"/>' for n in (1, 2))
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f"<dc:title>A book</dc:title></metadata><manifest>{items}</manifest>"
        '<spine><itemref idref="2"/><itemref idref="1"/></spine></package>'
    )
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("mimetype", "application/epub+zip")
        archive.writestr("META-INF/container.xml", container)
        archive.writestr("OEBPS/a.opf", package)
        for n in (1, 2):
            archive.writestr(f"OEBPS/c {n}.xhtml", f"<html><body><h1>Chapter {n}</h1></body></html>")
    kind, texts = pages(written(tmp_path / "stored", out.getvalue()))
    assert (kind, texts) == ("epub", ["**Title:** A book\n\n# Chapter 2", "# Chapter 1"])


def test_a_long_text_is_parted_at_paragraphs_and_nothing_is_lost():
    text = "\n\n".join(f"Paragraph {number} " + "word " * (number % 40) for number in range(400))
    parts = units.parted(text, 1000)
    assert max(map(len, parts)) <= 1000
    assert "\n\n".join(parts) == text


def test_a_long_table_is_parted_between_rows_and_repeats_its_head():
    rows = [f"| {number} | {'x' * (number % 9)} |" for number in range(500)]
    parts = units.parted("\n".join(["## Sheet\n", "| n | x |", "| --- | --- |", *rows]), 1000)
    assert max(map(len, parts)) <= 1000
    assert all(part.startswith("| n | x |\n| --- | --- |\n| ") for part in parts[1:])
    assert [line for part in parts for line in part.splitlines()[2:] if line[2:3].isdigit()] == rows


def test_a_text_without_any_gap_is_cut_anywhere():
    assert units.parted("x" * 2500, 1000) == ["x" * 1000, "x" * 1000, "x" * 500]


def test_every_text_type_has_a_media_type():
    assert set(MIME_TYPES) >= TEXT_TYPES


def test_stored_texts_of_an_earlier_revision_are_read_again(monkeypatch: pytest.MonkeyPatch):
    stored = units.stored(["a", ""])
    assert units.pages_in(stored) == ["a", ""]
    monkeypatch.setattr(units, "REVISION", units.REVISION + 1)
    assert units.pages_in(stored) == []
