"""Rewrite OpenDocument texts and presentations as HTML, one part for the text or for each slide.

Macros, deleted text, comments and embedded objects are left out; nothing outside the file is read.
"""

import io
import re
import zipfile
from html import escape
from xml.etree.ElementTree import Element  # defusedxml parses
from xml.parsers import expat

from defusedxml import ElementTree

from pipeline.reading.sandbox.limits import refused

_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_DRAW = "{urn:oasis:names:tc:opendocument:xmlns:drawing:1.0}"
_STYLE = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"
_FORMAT = "{urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0}"
_PRESENTATION = "{urn:oasis:names:tc:opendocument:xmlns:presentation:1.0}"
_SVG = "{urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0}"
_LINK = "{http://www.w3.org/1999/xlink}href"

_MAX_SPACES, _MAX_CELLS = 100, 100
"""How often a file may repeat a space, and a cell, in one element."""
_MAX_SHEET_CELLS = 5_000_000
"""How many filled cells a spreadsheet has at most, repeated ones included."""
_ATTRIBUTES = rb"""((?:\s(?:[^<>"'/]|"[^"]*"|'[^']*')*+)?)"""
_CELL = re.compile(rb"<table:table-cell" + _ATTRIBUTES + rb"(/?)>")
_ROW = re.compile(rb"<table:table-row" + _ATTRIBUTES + rb">((?:[^<]|<(?!/table:table-row>))*+)")
_REPEATED = re.compile(rb"""\stable:number-(?:rows|columns)-repeated\s*=\s*["'](\d{1,9})["']""")
_LEFT_OUT = frozenset(
    {
        f"{_TEXT}tracked-changes",
        f"{_OFFICE}annotation",
        f"{_OFFICE}forms",
        f"{_TEXT}sequence-decls",
        f"{_TEXT}variable-decls",
        f"{_TEXT}note-citation",
        f"{_DRAW}object",
        f"{_DRAW}object-ole",
        f"{_TEXT}ruby-text",
    }
)
_ELEMENTS = {
    f"{_TEXT}p": "p",
    f"{_TEXT}list-item": "li",
    f"{_TEXT}list-header": "li",
    f"{_TABLE}table": "table",
    f"{_TABLE}table-row": "tr",
    f"{_TABLE}table-cell": "td",
    f"{_TABLE}covered-table-cell": "td",
    f"{_SVG}desc": "p",
}
_BLANKS = {f"{_TEXT}s": " ", f"{_TEXT}tab": " ", f"{_TEXT}line-break": "<br>"}
_CELLS = frozenset({f"{_TABLE}table-cell", f"{_TABLE}covered-table-cell"})


def parts(data: bytes) -> list[str]:
    """Return the HTML of an ODT file, or of each slide of an ODP file. Raises whatever damaged archives and XML
    raise."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        content = ElementTree.fromstring(archive.read("content.xml"))
        named = "styles.xml" in archive.namelist()
        styles = ElementTree.fromstring(archive.read("styles.xml")) if named else None
    body = content.find(f"{_OFFICE}body")
    if body is None:
        raise ValueError("no body")
    writer = _Writer([content] if styles is None else [styles, content])
    slides = body.findall(f"{_OFFICE}presentation/{_DRAW}page")
    return [writer.part(part) for part in slides or list(body)]


def typed_sheets(data: bytes, filename: str) -> bytes:
    """Return an ODS file whose cells all have types: text if they have none, which calamine would leave out.

    Raises `UnitError` with code `too_large` if cells are repeated too often to be unpacked.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        content = archive.read("content.xml")
        _check_well_formed(content)
        cells = sum(
            _repeated(row[1]) * sum(_repeated(cell[1]) for cell in _CELL.finditer(row[2]) if cell[2] != b"/")
            for row in _ROW.finditer(content)
        )
        if cells > _MAX_SHEET_CELLS:
            message = f"{filename} has {cells:,} filled cells, more than the accepted {_MAX_SHEET_CELLS:,}"
            raise refused(f"{message}; split the file.", "too_large")
        typed = _CELL.sub(_typed, content)
        if typed == content:
            return data
        written = io.BytesIO()
        with zipfile.ZipFile(written, "w") as copy:
            for name in archive.namelist():
                if not name.endswith("/"):
                    copy.writestr(name, typed if name == "content.xml" else archive.read(name))
    return written.getvalue()


def _check_well_formed(content: bytes) -> None:
    """Raise `ExpatError` for damaged XML, at which calamine never ends, and `ValueError` for entities."""

    def refuse(*_: object) -> None:
        raise ValueError("entities")

    parser = expat.ParserCreate()
    parser.EntityDeclHandler = refuse
    parser.Parse(content, True)


def _typed(cell: re.Match[bytes]) -> bytes:
    if cell[2] or b"office:value-type" in cell[1]:
        return cell[0]
    return cell[0].removesuffix(b">") + b' office:value-type="string">'


def _repeated(attributes: bytes) -> int:
    match = _REPEATED.search(attributes)
    return int(match[1]) if match else 1


class _Writer:
    def __init__(self, roots: list[Element]) -> None:
        self._marks: dict[str, list[str]] = {}
        """The HTML elements of each bold or italic text style."""
        self._numbered: set[str] = set()
        """The names of list styles whose first level has numbers."""
        self._notes: list[str] = []
        for root in roots:
            for style in root.iter(f"{_STYLE}style"):
                self._note_style(style)
            for style in root.iter(f"{_TEXT}list-style"):
                if len(style) and style[0].tag == f"{_TEXT}list-level-style-number":
                    self._numbered.add(style.get(f"{_STYLE}name", ""))

    def _note_style(self, style: Element) -> None:
        form = style.find(f"{_STYLE}text-properties")
        if style.get(f"{_STYLE}family") == "text" and form is not None:
            bold = form.get(f"{_FORMAT}font-weight", "") in {"bold", "600", "700", "800", "900"}
            italic = form.get(f"{_FORMAT}font-style") == "italic"
            self._marks[style.get(f"{_STYLE}name", "")] = ["b"] * bold + ["i"] * italic

    def part(self, part: Element) -> str:
        """Return the HTML of the text or a slide, with its footnotes at the end."""
        self._notes = []
        html = self._inner(part)
        notes = "".join(f"<p>[{at}] {note.strip().removeprefix('<p>')}</p>" for at, note in enumerate(self._notes, 1))
        return f"<html><body>{html}{notes}</body></html>"

    def _inner(self, element: Element) -> str:
        pieces = [escape(element.text or "")]
        for child in element:
            if isinstance(child.tag, str) and child.tag not in _LEFT_OUT:
                pieces.append(self._element(child))
            pieces.append(escape(child.tail or ""))
        return "".join(pieces)

    def _element(self, element: Element) -> str:
        tag = element.tag
        if tag in _BLANKS:
            return _BLANKS[tag] * _count(element.get(f"{_TEXT}c"), _MAX_SPACES)
        if tag == f"{_DRAW}frame" and element.get(f"{_PRESENTATION}class") == "title":
            title = " ".join(self._inner(line) for line in element.iter(f"{_TEXT}p"))  # a heading has no paragraphs
            return f"<h1>{title}</h1>" if title.strip() else ""
        inner = self._inner(element)
        if tag == f"{_TEXT}note":
            self._notes.append(inner)
            return f"[{len(self._notes)}]"
        if tag == f"{_PRESENTATION}notes":
            return f"<h3>Notes</h3>{inner}" if inner.strip() else ""
        names = self._names(element)
        html = "".join(f"<{name}>" for name in names) + inner + "".join(f"</{name.split()[0]}>" for name in names[::-1])
        repeated = element.get(f"{_TABLE}number-columns-repeated") if tag in _CELLS else None
        return html * _count(repeated, _MAX_CELLS if inner else 1)

    def _names(self, element: Element) -> list[str]:
        """Return the HTML elements for an element, the outermost first; none for one without a meaning of its own."""
        match element.tag.removeprefix(_TEXT):
            case "h":
                level = element.get(f"{_TEXT}outline-level", "1")
                return [f"h{level if level in set('12345') else 6}"]
            case "list":
                return ["ol" if element.get(f"{_TEXT}style-name") in self._numbered else "ul"]
            case "a":
                return [f'a href="{escape(element.get(_LINK, ""))}"']
            case "span":
                return self._marks.get(element.get(f"{_TEXT}style-name", ""), [])
        name = _ELEMENTS.get(element.tag)
        return [name] if name else []


def _count(text: str | None, most: int) -> int:
    return min(int(text), most) if text and text.isascii() and text.isdigit() else 1
