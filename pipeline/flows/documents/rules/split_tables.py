"""Tables that go on over the end of a page: joined when the pages are merged, a repeated head dropped.

Works on the pages' Markdown, whoever wrote it. That a table goes on is certain when its head is repeated; without that
it is believed only where the places of both parts on their pages say so.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_SEPARATOR = re.compile(r"\|(?:\s*:?-+:?\s*\|)+")
_CELLS = re.compile(r"(?<!\\)\|")
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_SPAN = re.compile(r"<t[hd][^>]*?(?:colspan=\"(\d+)\")?[^>]*>")
_SAME_SIDE = 0.02  # of the page's width
_LOW, _HIGH = 0.6, 0.35  # of the page's height: where the first part ends at least, and the second begins at most

Layout = Mapping[str, Any]


def join_tables(texts: Sequence[str], layouts: Sequence[Layout | None]) -> list[str]:
    """The texts of consecutive pages, with tables that go on moved to the page where they begin."""
    joined = list(texts)
    begins = 0
    for page in range(1, len(joined)):
        parts = _joined(joined[begins], joined[page], _goes_on(layouts[page - 1], layouts[page]))
        if parts is not None:
            joined[begins], joined[page] = parts
        if parts is None or joined[page].strip():
            begins = page
    return joined


def _joined(first: str, second: str, goes_on: bool) -> tuple[str, str] | None:
    """(the first text with the whole table, the second without its part); None if there is nothing to join."""
    before, _, above = first.rstrip().rpartition("\n\n")
    below, _, after = second.lstrip("\n").partition("\n\n")
    if above.startswith("|") and below.startswith("|"):
        table = _pipes(above.split("\n"), below.split("\n"), goes_on)
    elif above.startswith("<table>") and below.startswith("<table>"):
        table = _html(above, below, goes_on)
    else:
        return None
    if table is None:
        return None
    return (f"{before}\n\n{table}" if before else table), after


def _pipes(above: list[str], below: list[str], goes_on: bool) -> str | None:
    if not (_has_head(above) and _has_head(below)) or _width(above[0]) != _width(below[0]):
        return None
    if _plain(above[0]) == _plain(below[0]):
        return "\n".join(above + below[2:])
    return "\n".join([*above, below[0], *below[2:]]) if goes_on else None


def _has_head(lines: list[str]) -> bool:
    return len(lines) > 1 and _SEPARATOR.fullmatch(lines[1].strip()) is not None


def _width(row: str) -> int:
    return len(_CELLS.findall(row))


def _html(above: str, below: str, goes_on: bool) -> str | None:
    first, second = _ROW.findall(above), _ROW.findall(below)
    if not first or not second or _columns(first[0]) != _columns(second[0]):
        return None
    head = [row for row in first if "<th" in row]
    repeated = bool(head) and [_plain(row) for row in second[: len(head)]] == [_plain(row) for row in head]
    if not repeated and not goes_on:
        return None
    rows = second[len(head) :] if repeated else [row.replace("<th", "<td").replace("</th>", "</td>") for row in second]
    return "\n".join(["<table>", *first, *rows, "</table>"])


def _columns(row: str) -> int:
    return sum(int(found.group(1) or 1) for found in _SPAN.finditer(row))


def _plain(row: str) -> str:
    return " ".join(re.sub(r"[*_`\\]", "", row).casefold().split())


def _goes_on(first: Layout | None, second: Layout | None) -> bool:
    """Whether a table at the end of a page and one at the beginning of the next stand as parts of one would."""
    if not (first and second and first["blocks"] and second["blocks"]):
        return False
    above, below = first["blocks"][-1], second["blocks"][0]
    if above["type"] != "table" or below["type"] != "table":
        return False
    (left, _, right, bottom), (next_left, top, next_right, _) = above["bbox"], below["bbox"]
    near = _SAME_SIDE * first["width"]
    aligned = abs(left - next_left) <= near and abs(right - next_right) <= near
    return bool(aligned and bottom >= _LOW * first["height"] and top <= _HIGH * second["height"])
