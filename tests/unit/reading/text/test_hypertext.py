"""Text of HTML stays text in Markdown, and tables keep their columns."""

from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest

from pipeline.engine.errors import UnitError
from pipeline.reading.sandbox.limits import Limits
from pipeline.reading.text import extraction, office
from pipeline.reading.text.content_type import Kind
from tests.support.opendocuments import open_document


@pytest.mark.parametrize(
    ("html", "markdown"),
    [
        ("<p>List&lt;String&gt; x &lt;script&gt;</p>", "List\\<String> x \\<script>"),
        ("<p><code>a&lt;b&gt;</code></p><pre># &lt;b&gt;</pre>", "`a<b>`\n\n```\n# <b>\n```"),
        ("<p>&amp;lt; *x* `y`</p>", "\\&lt; \\*x\\* \\`y\\`"),
        ("<p># Not a heading</p><p>- not a list</p>", "\\# Not a heading\n\n\\- not a list"),
        ("<p>1. a<br># b</p><div><span>+ c</span></div>", "1\\. a  \n\\# b\n\n\\+ c"),
        ("<p><b>1.</b> a</p><p>x # y - z</p>", "**1.** a\n\nx # y - z"),
        ("<ul><li># a<li>b</ul>", "* \\# a\n* b"),
        ("<ol start=3><li><p>a<li>b<ul><li>c</ul><li>d</ol>", "3. a\n4. b\n   * c\n5. d"),
        ("<p>a<p>b<div>c</div>", "a\n\nb\n\nc"),
        (
            "<table><tr><th>a|b<th>c<tr><td>d<td><code>e|f</code></table>",
            "| a\\|b | c |\n| --- | --- |\n| d | `e\\|f` |",
        ),
        (
            "<table><tr><td rowspan=2>a<td>b<td rowspan=3>c<tr><td>d<tr><td colspan=2>e</table>",
            "| a | b | c |\n| --- | --- | --- |\n|  | d |  |\n| e | |  |",
        ),
    ],
)
def test_html_becomes_markdown(html: str, markdown: str) -> None:
    assert office.from_html(html)[1] == [markdown]


@pytest.mark.parametrize(
    ("html", "markdown"),
    [
        (
            "<ol><li>a<ul><li>b<pre>&lt;c>\n\n  [d](e)</pre></ul></ol>",
            "1. a\n   * b\n\n     ```\n     <c>\n\n       [d](e)\n     ```",
        ),
        ("<ul><li><pre>&lt;c></pre></ul>", "* ```\n  <c>\n  ```"),
        ("<blockquote><pre>&lt;c></pre></blockquote>", "> ```\n> <c>\n> ```"),
        ("<pre>a\n```\nb</pre>", "````\na\n```\nb\n````"),
        ("<p><code>Array&lt;a | b></code></p>", "`Array<a | b>`"),
        ("<table><tr><th>a<tr><td><code>Array&lt;a|b></code></table>", "| a |\n| --- |\n| `Array<a\\|b>` |"),
        ('<p>(A$) <a href="https://example.org">b</a> (C$)</p>', "(A$) [b](https://example.org) (C$)"),
        ("<p>\\(a_b\\) costs $5, &lt;b> $6</p>", "\\\\(a_b\\\\) costs $5, \\<b> $6"),
        ('<p><a href="/a"><img src="b" alt="c_d_"></a><a href="x.html">e</a></p>', "c_d\\_ e"),
    ],
)
def test_what_is_harmless_stays(html: str, markdown: str) -> None:
    assert extraction.read_text(Kind.HTML, html.encode(), "a.html", Limits()).text == markdown


def test_an_open_documents_text_and_notes_stay_text(tmp_path: Path) -> None:
    body = (
        "<text:p>1. the &lt;img&gt; tag<text:note><text:note-body><text:p>A note</text:p></text:note-body></text:note>"
        "</text:p><text:p># end</text:p>"
    )
    path = open_document(tmp_path / "a.odt", "text", body)
    text = office.convert(Kind.ODT, path.read_bytes(), "a.odt")[1]
    assert text == ["1\\. the \\<img> tag[1]\n\n\\# end\n\n[1] A note"]


def _sheet(tmp_path: Path, rows: str) -> bytes:
    return open_document(
        tmp_path / "a.ods", "spreadsheet", f'<table:table table:name="S">{rows}</table:table>'
    ).read_bytes()


def test_cells_without_a_type_keep_their_text(tmp_path: Path) -> None:
    cells = (
        '<table:table-cell table:formula="a&gt;b/c"><text:p>untyped</text:p></table:table-cell><table:table-cell/>'
        '<table:table-cell office:value-type="float" office:value="3"><text:p>3</text:p></table:table-cell>'
    )
    data = _sheet(tmp_path, f"<table:table-row>{cells}</table:table-row>")
    assert office.convert(Kind.ODS, data, "a.ods")[1] == ["## S\n\n| untyped | 3 |\n| --- | --- |"]


def test_cells_repeated_too_often_are_refused(tmp_path: Path) -> None:
    cell = (
        '<table:table-cell office:value-type="string" table:number-columns-repeated="1000"><text:p>a</text:p>'
        "</table:table-cell>"
    )
    data = _sheet(tmp_path, f'<table:table-row table:number-rows-repeated="1000000">{cell}</table:table-row>')
    with pytest.raises(UnitError, match=r"a\.ods has 1,000,000,000 filled cells") as caught:
        office.convert(Kind.ODS, data, "a.ods")
    assert caught.value.code == "too_large"


def test_a_docx_keeps_its_text_and_its_columns() -> None:
    def cell(text: str, merge: str = "") -> str:
        return f"<w:tc><w:tcPr>{merge}</w:tcPr><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:tc>"

    rows = (
        cell("a|b", '<w:vMerge w:val="restart"/>') + cell("c"),
        cell("", "<w:vMerge/>") + cell("d"),
        cell("e") + cell("f"),
    )
    body = "<w:p><w:r><w:t># An &lt;img&gt; tag</w:t></w:r></w:p><w:tbl>"
    body += "".join(f"<w:tr>{row}</w:tr>" for row in rows) + "</w:tbl>"
    schemas, word = "http://schemas.openxmlformats.org", "wordprocessingml"
    kind = f"{schemas}/officeDocument/2006/relationships/officeDocument"
    file = BytesIO()
    with ZipFile(file, "w") as archive:
        archive.writestr("[Content_Types].xml", f'<Types xmlns="{schemas}/package/2006/content-types"/>')
        archive.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{schemas}/package/2006/relationships">'
            f'<Relationship Id="r" Type="{kind}" Target="word/document.xml"/></Relationships>',
        )
        document = f'<w:document xmlns:w="{schemas}/{word}/2006/main"><w:body>{body}</w:body></w:document>'
        archive.writestr("word/document.xml", document)
    text = office.convert(Kind.DOCX, file.getvalue(), "a.docx")[1]
    assert text == ["\\# An \\<img> tag\n\n| a\\|b | c |\n| --- | --- |\n|  | d |\n| e | f |"]
