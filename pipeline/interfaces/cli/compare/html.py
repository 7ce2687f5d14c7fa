"""The comparison as one HTML file: no scripts, nothing loaded from elsewhere, and every text escaped or sanitised."""

import base64
from collections.abc import Mapping, Sequence
from html import escape

from pipeline.engine.errors import UnitError
from pipeline.interfaces.cli.compare.figures import Candidate, PageFigures
from pipeline.interfaces.cli.compare.report import COLUMNS, Found, facts, pieces, row, whole
from pipeline.reading.export.effort import by_child, is_small
from pipeline.reading.export.safe_html import harmless

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { margin: 1rem }
table { border-collapse: collapse }
td, th { border: 1px solid light-dark(#ccc, #555); padding: .2rem .5rem; text-align: left }
.page { display: grid; grid-auto-flow: column; grid-auto-columns: minmax(20rem, 1fr); gap: 1rem; overflow-x: auto }
.page img { width: 100%; border: 1px solid light-dark(#ccc, #555) }
.facts { color: light-dark(#666, #aaa) }
.error { color: light-dark(#b00, #f88) }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: 13px/1.4 ui-monospace, monospace }
mark { background: light-dark(#ffe58a, #665200); color: inherit }
details { border: 1px solid light-dark(#ccc, #555); padding: .2rem .5rem; overflow-x: auto }
"""


def page(
    filename: str, candidates: Sequence[Candidate], found: Found, in_file: int, pictures: Mapping[int, bytes]
) -> str:
    """Return the whole file. `pictures`: WebP by the page's number in the file."""
    title = escape(f"Comparison of {filename}")
    numbers = sorted({each.page for candidate in candidates for each in candidate.pages})
    body = [f"<h1>{title}</h1>", _totals(candidates, in_file)]
    for number in numbers:
        columns = [_picture(pictures[number], number)] if number in pictures else []
        columns += [
            _text(candidate, each, candidates, found)
            for candidate in candidates
            for each in candidate.pages
            if each.page == number
        ]
        body.append(f'<h2>Page {number}</h2>\n<div class="page">\n{"".join(columns)}</div>')
    head = f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
    head += f'<meta name="viewport" content="width=device-width">\n<title>{title}</title>\n<style>{_STYLE}</style>'
    content = "\n".join(body)
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{content}\n</body>\n</html>\n'


def _totals(candidates: Sequence[Candidate], in_file: int) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in (*COLUMNS, *whole(in_file)))
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row(candidate, in_file))}</tr>\n"
        for candidate in candidates
    )
    errors = "".join(
        f'<p class="error">{escape(f"{candidate.name}: {candidate.error}")}</p>\n'
        for candidate in candidates
        if candidate.error
    )
    note = "<p>Time and cost of the whole file are those of these pages, one after another, times their number.</p>"
    return f"<table>\n<tr>{head}</tr>\n{rows}</table>\n{note}\n{errors}"


def _picture(content: bytes, number: int) -> str:
    uri = f"data:image/webp;base64,{base64.b64encode(content).decode()}"
    return f'<div><img src="{uri}" alt="page {number} of the file"></div>\n'


def _text(candidate: Candidate, page: PageFigures, candidates: Sequence[Candidate], found: Found) -> str:
    name = f"<h3>{escape(candidate.name)}</h3>"
    if page.error:
        return f'<div>{name}<p class="error">{escape(page.error)}</p></div>\n'
    parts = pieces(candidate, page, candidates, found)
    source = "".join(
        f"<mark>{escape(piece.text)}</mark>" if piece.changed and piece.text.strip() else escape(piece.text)
        for piece in parts
    )
    shown = f"<details><summary>As a page</summary>\n{rendered}</details>" if (rendered := _rendered(page.text)) else ""
    return f'<div>{name}<p class="facts">{escape(facts(page, candidate))}</p>\n<pre>{source}</pre>\n{shown}</div>\n'


def _rendered(text: str) -> str:
    """The text as sanitised HTML; empty if it is too much for that."""
    try:
        return (harmless([text]) if is_small([text]) else by_child("html", parts=[text], pictures="")["html"])[0]
    except UnitError:
        return ""
