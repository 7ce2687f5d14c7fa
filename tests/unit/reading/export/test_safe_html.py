"""Hostile Markdown becomes harmless HTML."""

import re

import pytest

from pipeline.engine.errors import UnitError
from pipeline.reading.export import safe_html
from pipeline.reading.export.safe_html import harmless

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)><a xlink:href=javascript:alert(1)>x</a></svg>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt&colon;alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](vbscript:x)",
    "![x](javascript:alert(1))",
    "![x](data:image/svg+xml,<svg onload=alert(1)>)",
    "<javascript:alert(1)>",
    "[x]: javascript:alert(1)\n\n[x]",
    '[x](https://a.example "onmouseover=alert(1)")',
    "<iframe src=//evil.example></iframe>",
    "<style>*{display:none}</style>",
    "<form action=//evil.example><button>Log in</button></form>",
    "| <b onclick=alert(1)> |\n|---|\n| <script>x</script> |",
    "`<script>alert(1)</script>`",
    "<table><tr><td><a href='//[x'>y</a></td></tr></table>",
    "\x00<script>alert(1)</script>",
]


def html(text: str, pictures: str = "") -> str:
    return harmless([text], pictures)[0]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_hostile_gets_through(text: str) -> None:
    safe = html(text)
    tags = re.findall(r"<([a-z0-9]+)([^>]*)>", safe)
    assert {name for name, _ in tags} <= {
        "p",
        "a",
        "img",
        "code",
        "pre",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "li",
    }
    for _, attributes in tags:
        assert not re.search(r"\bon\w+=", re.sub(r'"[^"]*"', '""', attributes))
        assert not re.search(r'(href|src)="(?!https?://a\.example|mailto:|#)', attributes)


def test_tables_headings_and_links_stay() -> None:
    safe = html("# A\n\n| b | c |\n|---|---|\n| 1 | 2 |\n\n[d](https://a.example/e)")
    assert "<h1>A</h1>" in safe
    assert "<td>2</td>" in safe
    assert 'href="https://a.example/e"' in safe
    assert 'rel="noopener noreferrer nofollow"' in safe


def test_pictures_are_shown_from_addresses_of_ours_alone() -> None:
    text = "![one](pictures/1.png) ![two](https://evil.example/2.png)"
    safe = html(text, "/api/mine")
    assert 'src="/api/mine/1.png"' in safe
    assert "evil.example" not in safe
    assert safe.endswith(" two</p>\n"), "the text of a removed picture is lost"


def test_more_html_than_anybody_reads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_html, "_MOST", 1_000)
    with pytest.raises(UnitError) as caught:
        harmless(["a" * 600] * 2)
    assert caught.value.code == "too_large"
