"""Convert office files, books, feeds, notebooks and e-mails to Markdown: a text for each slide, sheet and chapter.

Nothing is fetched: pictures, links and attachments stay where they are.
"""

import csv
import io
import json
import posixpath
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, time
from itertools import groupby
from typing import Any
from urllib.parse import unquote

from pipeline.reading.layout import inline
from pipeline.reading.replies import markup
from pipeline.reading.sandbox.limits import refused
from pipeline.reading.text import charset, opendocument
from pipeline.reading.text.content_type import Kind

Converted = tuple[str, list[str]]
"""A title, or empty, and the Markdown of each slide, sheet or chapter, or of the whole."""

_SLIDE = re.compile(r"^<!-- Slide number: \d+ -->\n?", re.MULTILINE)
_META_CHARSET = re.compile(rb"""<meta[^>]{0,200}?charset\s*+=\s*+["']?\s*+([\w.:-]{1,40})""", re.IGNORECASE)
_XML_ENCODING = re.compile(rb"""\A\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([\w.:-]{1,40})""", re.IGNORECASE)
_CONTAINER = "{urn:oasis:names:tc:opendocument:xmlns:container}"
_PACKAGE = "{http://www.idpf.org/2007/opf}"
_DUBLIN_CORE = "{http://purl.org/dc/elements/1.1/}"
_BOOK_FACTS = {
    "Title": "title",
    "Authors": "creator",
    "Language": "language",
    "Publisher": "publisher",
    "Date": "date",
    "Description": "description",
    "Identifier": "identifier",
}
_CHAPTERS = frozenset({"application/xhtml+xml", "text/html"})
_MAIL_FACTS = ("From", "To", "Cc", "Date")
_DECODED_CHARACTERS = 50_000
_MOST_CELLS = 5_000_000
"""Cells of a table, empty ones included: a row may be as wide as the widest."""


def convert(kind: Kind, data: bytes, filename: str) -> Converted:
    """Convert a file of any kind that is neither seen nor only decoded. Raises whatever a dozen libraries raise for
    damaged files."""
    if kind in _READERS:
        return _READERS[kind](data, filename)
    from markitdown import StreamInfo, converters  # noqa: PLC0415  (0.8 s)

    from pipeline.reading.text import hypertext  # noqa: PLC0415

    classes: Mapping[Kind, tuple[Any, str]] = {
        Kind.DOCX: (converters.DocxConverter, ".docx"),
        Kind.PPTX: (converters.PptxConverter, ".pptx"),
    }
    converter, suffix = classes[kind]
    reader = converter()
    reader._html_converter = hypertext.Converter()  # noqa: SLF001  (markitdown has no other way)
    converted = reader.convert(io.BytesIO(data), StreamInfo(extension=suffix))
    text = str(converted.markdown)
    return str(converted.title or ""), _SLIDE.split(text)[1:] if kind == Kind.PPTX else [text]


def html_text(data: bytes, name: str) -> str:
    """Return the text of an HTML or XHTML file, in the encoding that it declares. Raises `UnitError`."""
    return charset.decode(data, name, declared_encoding(data))


def declared_encoding(data: bytes) -> str:
    """Return the encoding that HTML or XML declares itself; empty if none."""
    match = _XML_ENCODING.search(data[:1024]) or _META_CHARSET.search(data[:4096])
    return match[1].decode("ascii") if match else ""


def from_html(html: str) -> Converted:
    """Convert HTML to Markdown; scripts and styles are left out, and links and pictures stay links."""
    from pipeline.reading.text import hypertext  # noqa: PLC0415

    converted = hypertext.Converter().convert_string(html)
    return str(converted.title or ""), [converted.markdown]


def _html(data: bytes, filename: str) -> Converted:
    return from_html(html_text(data, filename))


def _open_document(data: bytes, _: str) -> Converted:
    return "", [from_html(part)[1][0] for part in opendocument.parts(data)]


def _sheets(data: bytes, _: str) -> Converted:
    """Convert each sheet of XLSX, XLS or ODS below a heading with its name. An empty row begins another table; rows
    with a single filled cell before a table are its title."""
    from python_calamine import CalamineWorkbook, SheetTypeEnum  # noqa: PLC0415

    with CalamineWorkbook.from_filelike(io.BytesIO(data)) as book:
        names = [sheet.name for sheet in book.sheets_metadata if sheet.typ == SheetTypeEnum.WorkSheet]
        sheets = {name: book.get_sheet_by_name(name).to_python(skip_empty_area=True) for name in names}
    return "", [
        "\n\n".join([f"## {inline.literal(name)}", *tables([[_cell(value) for value in row] for row in rows])])
        for name, rows in sheets.items()
    ]


def _cell(value: object) -> str:
    """Return a value as a spreadsheet shows it, without its number format."""
    if isinstance(value, float):  # 15 digits, as spreadsheets have
        return f"{value:.15g}" if not value.is_integer() or abs(value) >= 1e15 else str(int(value))
    if isinstance(value, datetime) and value.time() == time():
        return value.date().isoformat()
    return str(value).upper() if isinstance(value, bool) else str(value)


def _csv(data: bytes, filename: str) -> Converted:
    text = charset.decode(data, filename)
    first = text.partition("\n")[0]
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count)))
    return "", [table([row for row in rows if any(row)])]


def tables(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the Markdown of a sheet's rows: tables and, where rows have one filled cell, paragraphs."""
    parts: list[str] = []
    for filled, group in groupby(rows, key=lambda row: bool(any(map(str.strip, row)))):
        block = [list(row) for row in group] if filled else []
        while block and sum(bool(cell.strip()) for cell in block[0]) == 1:
            parts.append(inline.at_line_start(inline.literal(next(cell for cell in block.pop(0) if cell.strip()))))
        if block:
            parts.append(table(block))
    return parts


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table, whose first row is the head; columns without text are left out. Raises
    `UnitError` with code `too_large` if the places of the table are more than a text may have."""
    kept = sorted({column for row in rows for column, cell in enumerate(row) if cell.strip()})
    if len(rows) * len(kept) > _MOST_CELLS:
        size = f"{len(rows):,} rows and {len(kept):,} columns"
        raise refused(f"A table of {size} has more than the accepted {_MOST_CELLS:,} cells; split it.", "too_large")
    lines = [
        _line([inline.literal(row[at]).replace("|", "\\|") if at < len(row) else "" for at in kept]) for row in rows
    ]
    return "\n".join([lines[0], _line(["---"] * len(kept)), *lines[1:]]) if kept else ""


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _book(data: bytes, filename: str) -> Converted:
    """Convert each chapter of an EPUB file in the order of its spine; the facts about the book precede the first."""
    from defusedxml import ElementTree  # noqa: PLC0415

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        container = ElementTree.fromstring(archive.read("META-INF/container.xml"))
        at = next(container.iter(f"{_CONTAINER}rootfile")).get("full-path", "")
        package, names = ElementTree.fromstring(archive.read(at)), set(archive.namelist())
        places = {
            item.get("id"): posixpath.normpath(posixpath.join(posixpath.dirname(at), item.get("href", "")))
            for item in package.iter(f"{_PACKAGE}item")
            if item.get("media-type") in _CHAPTERS
        }
        spine = [places[key] for item in package.iter(f"{_PACKAGE}itemref") if (key := item.get("idref")) in places]
        found = [name if name in names else unquote(name) for name in spine]
        # A spine names a chapter once; a hostile one repeats it thousands of times.
        chapters = [
            from_html(html_text(archive.read(name), filename))[1][0] for name in dict.fromkeys(found) if name in names
        ]
    known = {name: ", ".join(map(_words, package.iter(f"{_DUBLIN_CORE}{tag}"))) for name, tag in _BOOK_FACTS.items()}
    facts = "  \n".join(f"**{name}:** {inline.literal(words)}" for name, words in known.items() if words)
    chapters = chapters or [""]
    return known["Title"], [f"{facts}\n\n{chapters[0]}", *chapters[1:]]


def _words(node: Any) -> str:
    return " ".join("".join(node.itertext()).split())


def _feed(data: bytes, _: str) -> Converted:
    from markitdown import StreamInfo  # noqa: PLC0415

    from pipeline.reading.text import hypertext  # noqa: PLC0415

    reader = hypertext.Feed()
    converted = reader.convert(io.BytesIO(data), StreamInfo(extension=".xml"))
    return reader.title if converted.title else "", [converted.markdown]


def _notebook(data: bytes, filename: str) -> Converted:
    """Convert a notebook: its cells of Markdown as they are, others as blocks of code, without outputs."""
    notebook = json.loads(charset.decode(data, filename).removeprefix("\ufeff"))
    parts: list[str] = []
    title = ""
    for cell in notebook["cells"]:
        source = "".join(cell.get("source", ""))
        match cell.get("cell_type"):
            case "markdown":
                parts.append(source)
                title = title or next((line[2:] for line in source.splitlines() if line.startswith("# ")), "")
            case "code":
                parts.append(markup.fenced(source, "python"))
            case "raw":
                parts.append(markup.fenced(source))
    return str(notebook.get("metadata", {}).get("title", title)), ["\n\n".join(parts)]


def _mail(data: bytes, filename: str) -> Converted:
    """Convert an e-mail: subject, sender, recipients, date, names of attachments, and its HTML or else plain text."""
    from email import message_from_bytes, policy  # noqa: PLC0415

    mail = message_from_bytes(data, policy=policy.default.clone(header_factory=lambda _, text: _Header(_decoded(text))))
    facts = [f"**{name}:** {inline.literal(str(mail[name]))}" for name in _MAIL_FACTS if mail[name]]
    attached = ", ".join(inline.literal(part.get_filename() or "without a name") for part in mail.iter_attachments())
    facts += [f"**Attachments:** {attached}"] if attached else []
    subject = " ".join(str(mail["Subject"] or "").split())
    texts = [_body(mail.get_body((kind,)), filename) for kind in ("html", "plain")]
    text = next((text for text in texts if text.strip()), "")
    heading = f"# {inline.literal(subject)}" if subject else ""
    return subject, ["\n\n".join(filter(None, [heading, "  \n".join(facts), text]))]


class _Header(str):
    """A header that is decoded, but not parsed: Python takes the square of its length to parse one."""

    __slots__ = ()

    @property
    def content_disposition(self) -> str:
        return self.partition(";")[0].strip().lower()


def _decoded(header: str) -> str:
    from email.errors import HeaderParseError  # noqa: PLC0415
    from email.header import decode_header  # noqa: PLC0415

    text = header.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if len(text) > _DECODED_CHARACTERS:
        return text
    try:
        parts = decode_header(text)
        return "".join(
            part if isinstance(part, str) else part.decode(charset or "ascii", "replace") for part, charset in parts
        )
    except (HeaderParseError, LookupError, ValueError):
        return text


def _body(part: Any, filename: str) -> str:
    if part is None:
        return ""
    data, declared = part.get_payload(decode=True) or b"", part.get_content_charset("")
    text = charset.decode(data, filename, declared) if data.strip() else ""
    return from_html(text)[1][0] if part.get_content_subtype() == "html" else text


_READERS: Mapping[Kind, Callable[[bytes, str], Converted]] = {
    Kind.XLSX: _sheets,
    Kind.XLS: _sheets,
    Kind.ODS: lambda data, filename: _sheets(opendocument.typed_sheets(data, filename), filename),
    Kind.ODT: _open_document,
    Kind.ODP: _open_document,
    Kind.HTML: _html,
    Kind.CSV: _csv,
    Kind.EPUB: _book,
    Kind.MAIL: _mail,
    Kind.FEED: _feed,
    Kind.NOTEBOOK: _notebook,
}
