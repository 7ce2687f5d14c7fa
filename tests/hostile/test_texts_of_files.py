"""Files whose texts try to be active in the Markdown that they become."""

import json
import zipfile
from collections.abc import Callable
from email.message import EmailMessage
from html import escape
from io import BytesIO
from pathlib import Path

import pptx
import pytest
from openpyxl import Workbook
from PIL import Image
from pptx.util import Inches

from pipeline.reading.sandbox.limits import Limits, Task
from pipeline.reading.text import tasks
from tests.support.active_markdown import ATTACKS, active
from tests.support.opendocuments import open_document, slide

TEXTS = [
    *ATTACKS,
    "](x) <script>alert(1)</script>",
    '" onerror="alert(1)',
    "javascript:alert(1)",
    "```\n<script>alert(1)</script>\n```\n<script>alert(1)</script>\n",
    "~~~~\n```\n<x onload=1>\n\n\n<x onload=1>",
    "x\r```\r<script>alert(1)</script>\r",
    "[a](file:///etc/passwd)",
    "//example.org/pixel.png",
    '[a](https://example.org/ "<script>") ![b][a]',
]
QUOTED = [escape(text) for text in TEXTS]
LINES = [" ".join(text.split()) for text in TEXTS]
HTML = "".join(
    f'<p>{text}</p><p>{raw}</p><a href="{text}" title="{text}">{text}</a><a href="https://example.org/?{text}">z</a>'
    f'<img src="https://example.org/{text}" alt="{text}" title="{text}"><pre>{text}</pre><code>{text}</code>'
    f"<ul><li><pre>{text}</pre><ol><li><pre>{text}</pre></ol></ul><blockquote><pre>{text}</pre></blockquote>"
    f"<table><tr><th>{text}<td><code>{text}</code><td>{raw}</table><u>{text}</u><sub>{text}</sub><h2>{text}</h2>"
    for text, raw in zip(QUOTED, TEXTS, strict=True)
)
KEPT = '<h1>Kept</h1><p><a href="https://example.org/a">link</a></p><table><tr><th>a<tr><td>b</table><p>a<br>b</p>'


def zipped(entries: dict[str, str | bytes]) -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return out.getvalue()


def html(_: Path) -> bytes:
    return f"<html><head><title>{QUOTED[0]}</title></head><body>{KEPT}{HTML}</body></html>".encode()


def rss(_: Path) -> bytes:
    items = "".join(
        f"<item><title>{text}</title><pubDate>{text}</pubDate><description>{escape(raw)}</description>"
        f"<description>{text}</description></item>"
        for text, raw in zip(QUOTED, TEXTS, strict=True)
    )
    head = f"<title>{QUOTED[0]}</title><description>{' '.join(QUOTED)}</description>"
    kept = f"<item><title>Kept</title><description>{escape(KEPT + HTML)}</description></item>"
    return f'<rss version="2.0"><channel>{head}{kept}{items}</channel></rss>'.encode()


def atom(_: Path) -> bytes:
    entries = "".join(
        f"<entry><title>{text}</title><summary>{text}</summary><content type='html'>{text}</content></entry>"
        for text in QUOTED
    )
    return f'<feed xmlns="http://www.w3.org/2005/Atom"><title>{QUOTED[0]}</title>{entries}</feed>'.encode()


def like_a_feed(_: Path) -> bytes:
    return f"<rss><chan>```\n\n{''.join(TEXTS)}".encode()


def notebook(_: Path) -> bytes:
    kept = {"cell_type": "markdown", "source": "# Kept\n\n[link](https://example.org/a)\n\n| a |\n| --- |\n| b |"}
    cells = [{"cell_type": kind, "source": [text]} for text in TEXTS for kind in ("code", "markdown", "raw")]
    long = {"cell_type": "code", "source": "x = 1\n\n<script>alert(1)</script>\n" * 60_000}
    return json.dumps({"cells": [kept, *cells, long], "metadata": {}}).encode()


def mail(_: Path) -> bytes:
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = LINES[0], "<script>alert(1)</script> <a@b.c>", "a@b.c"
    message.set_content("plain")
    message.add_alternative(KEPT + HTML, subtype="html")
    for text in LINES:
        message.add_attachment(b"x", maintype="text", subtype="plain", filename=text)
    return message.as_bytes()


def plain_mail(_: Path) -> bytes:
    return ("From: a@b.c\nSubject: <img src=x>\n\n" + "\n\n".join(TEXTS)).encode()


def csv(_: Path) -> bytes:
    return "\n".join(["a,b", *(f'"{text.replace(chr(34), chr(34) * 2)}",b' for text in TEXTS)]).encode()


def sheets(_: Path) -> bytes:
    book, out = Workbook(), BytesIO()
    book.active.title = "<script>x<!--"
    for text in TEXTS:
        book.active.append([text, "b"])
        book.active.append([])
        book.active.append([text])
    book.active["C1"].hyperlink = "javascript:alert(1)"
    book.save(out)
    return out.getvalue()


def slides(_: Path) -> bytes:
    show, out, picture = pptx.Presentation(), BytesIO(), BytesIO()
    Image.new("L", (4, 4)).save(picture, "PNG")
    for text in TEXTS:
        page = show.slides.add_slide(show.slide_layouts[5])
        page.shapes.title.text = text
        page.shapes.add_textbox(0, 0, Inches(1), Inches(1)).text_frame.text = text
        shape = page.shapes.add_picture(picture, 0, 0)
        shape._element._nvXxPr.cNvPr.set("descr", text)
        page.shapes.add_table(1, 1, 0, 0, Inches(1), Inches(1)).table.cell(0, 0).text = text
        page.notes_slide.notes_text_frame.text = text
    show.save(out)
    return out.getvalue()


def docx(_: Path) -> bytes:
    schemas, word = "http://schemas.openxmlformats.org", "wordprocessingml"
    links = "".join(
        f'<Relationship Id="r{at}" Type="{schemas}/officeDocument/2006/relationships/hyperlink" Target="{text}" '
        'TargetMode="External"/>'
        for at, text in enumerate(QUOTED)
    )
    body = "".join(
        f'<w:p><w:r><w:t>{text}</w:t></w:r><w:hyperlink r:id="r{at}"><w:r><w:t>{text}</w:t></w:r></w:hyperlink></w:p>'
        for at, text in enumerate(QUOTED)
    )
    kind = f"{schemas}/officeDocument/2006/relationships"
    package = f"{schemas}/package/2006"
    return zipped(
        {
            "[Content_Types].xml": f'<Types xmlns="{package}/content-types"/>',
            "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r" '
            f'Type="{kind}/officeDocument" Target="word/document.xml"/></Relationships>',
            "word/_rels/document.xml.rels": f'<Relationships xmlns="{package}/relationships">{links}</Relationships>',
            "word/document.xml": f'<w:document xmlns:w="{schemas}/{word}/2006/main" xmlns:r="{kind}"><w:body>{body}'
            "</w:body></w:document>",
        }
    )


def odt(folder: Path) -> bytes:
    body = "".join(
        f'<text:p>{text}<text:a xlink:href="{text}">{text}</text:a></text:p><text:h>{text}</text:h>' for text in QUOTED
    )
    return open_document(folder / "a.odt", "text", body).read_bytes()


def odp(folder: Path) -> bytes:
    return open_document(folder / "a.odp", "presentation", "".join(slide(text, text) for text in QUOTED)).read_bytes()


def epub(_: Path) -> bytes:
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f"<dc:title>{QUOTED[0]}</dc:title><dc:description>{' '.join(QUOTED)}</dc:description></metadata><manifest>"
        '<item id="a" href="a.xhtml" media-type="application/xhtml+xml"/></manifest><spine><itemref idref="a"/></spine>'
        "</package>"
    )
    container = (
        '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles><rootfile full-path="a.opf"/>'
        "</rootfiles></container>"
    )
    chapter = f"<html><body>{KEPT}{HTML}</body></html>"
    return zipped({"META-INF/container.xml": container, "a.opf": package, "a.xhtml": chapter})


FILES: dict[str, Callable[[Path], bytes]] = {
    "a.html": html,
    "a.rss": rss,
    "atom.xml": atom,
    "cut.rss": like_a_feed,
    "a.ipynb": notebook,
    "a.eml": mail,
    "plain.eml": plain_mail,
    "a.csv": csv,
    "a.xlsx": sheets,
    "a.pptx": slides,
    "a.docx": docx,
    "a.odt": odt,
    "a.odp": odp,
    "a.epub": epub,
}


@pytest.mark.parametrize("name", FILES)
def test_nothing_in_the_text_of_a_file_is_active(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(FILES[name](tmp_path))
    facts = {"path": str(path), "name": name, "charset": ""}
    texts = tasks.TASKS["units"](Task(facts, Limits()))["pages"]
    assert len("".join(texts)) > 1_000, "the texts are in it"
    if name == "a.html":  # the other ways of reading a page
        for kind in ("file", "page"):
            texts += [text for text, *_ in tasks.TASKS[kind](Task(facts, Limits()))["sections"]]
    for text in texts:
        assert active(text) == []
    if "# Kept" in texts[0]:
        assert "[link](https://example.org/a)" in texts[0]
        assert "| a |\n| --- |\n| b |" in texts[0]
