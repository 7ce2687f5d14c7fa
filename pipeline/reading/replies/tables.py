"""Tables of all forms (OTSL, HTML, Markdown) as rows of cells with spans, and written as Markdown."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from itertools import islice
from typing import Any, NamedTuple

from pipeline.reading.export import hypertext
from pipeline.reading.export.grid import MAX_PLACES, grid
from pipeline.reading.layout.inline import escaped
from pipeline.reading.replies.formulas import apart, dollars

Rows = list[list[dict[str, Any]]]

_OTSL = re.compile(r"<(fcel|ecel|lcel|ucel|xcel|nl|ched|rhed|srow)>")
_KEPT = re.compile(r"(</?(?:sub|sup)>|<br>|\$[^$\n]{1,2000}\$)")
"""The markup that a cell keeps: raised figures, line breaks and formulas."""
_INLINE = re.compile(
    r"<(?P<end>/?)(?P<name>sub|sup|br|math|b|i|em|strong|u|s|del|span|font|p|div|input|a|code)\b(?P<more>[^<>]{0,300})>",
    re.IGNORECASE,
)
_PIPE_RULE = re.compile(r"\s*+\|?+(?:\s*+:?+-++:?+\s*+\|)*+\s*+(?::?+-++:?+\s*+)?+")
_BOLD = re.compile(r"\*\*([^*\n]++)\*\*")
_BACKSLASH = re.compile(r"\\([!-/:-@\[-`{-~])")
_PIPE = re.compile(r"(?<!\\)\|")
_MOST_FILLED = 20
"""The most places for each cell of a table whose short rows are filled with empty cells."""
_MOST_SPANNED = 50
"""The most places for each cell of a table that claims to be whole."""
_MAX_COUNTED = 200
"""The tables of a reply whose rows are compared."""


class Table(NamedTuple):
    """A table: rows of cells `{text, rows, columns}`, each listed in the row where it begins; the first `header` rows
    are the head. Texts may hold `<sup>`, `<sub>`, `<br>` and LaTeX between `$`."""

    rows: Rows
    header: int

    @property
    def spans(self) -> bool:
        """Whether a cell covers several places."""
        return any(cell["rows"] != 1 or cell["columns"] != 1 for row in self.rows for cell in row)

    @property
    def unequal(self) -> bool:
        """Whether rows differ in length, spans included. A row of a single cell is a heading inside the table."""
        if not self.spans:
            return len({len(row) for row in self.rows if len(row) > 1}) > 1
        cells = [cell for row in self.rows for cell in row]
        places = sum(min(cell["rows"], len(self.rows)) * cell["columns"] for cell in cells)
        if places > _MOST_SPANNED * len(cells) + 1_000:
            return True
        placed = grid(self.rows, self.header)
        if placed.size >= MAX_PLACES:
            return True
        widths: Counter[int] = Counter()
        for cell in placed.cells:
            for row in range(cell.row, cell.row + cell.rows):
                widths[row] += cell.columns
        return len({width for width in widths.values() if width > 1}) > 1

    def markdown(self) -> str:
        """Return a Markdown table, or HTML if cells are merged or the head has several rows."""
        if self.header <= 1 and not self.spans:
            width = max(len(row) for row in self.rows)
            # Readers fill short rows themselves.
            filled = width if width * len(self.rows) <= _MOST_FILLED * sum(map(len, self.rows)) else 0
            lines = [[_in_pipes(cell["text"]) for cell in row] + [""] * (filled - len(row)) for row in self.rows]
            pipes = ["| " + " | ".join(line) + " |" for line in lines]
            return "\n".join([pipes[0], "| " + " | ".join(["---"] * width) + " |", *pipes[1:]])
        parts = ["<table>"]
        for number, row in enumerate(self.rows):
            tag = "th" if number < self.header else "td"
            parts.append("<tr>" + "".join(_in_html(cell, tag) for cell in row) + "</tr>")
        return "\n".join([*parts, "</table>"])

    def block(self) -> dict[str, Any]:
        """Return the table as a block without a box, whose cells have plain text."""
        rows = [[{**cell, "text": plain(cell["text"])} for cell in row] for row in self.rows]
        return hypertext.table(rows, max(self.header, 1))


def literal(text: str) -> str:
    """Return text as Markdown that displays it, also between lines of HTML, where a backslash escapes nothing."""
    return escaped(text).replace("\\<", "&lt;").replace("![", "!\\[")


def plain(text: str) -> str:
    """Return a cell's text without marks for raised figures and line breaks."""
    parts = _KEPT.split(text)
    parts[1::2] = [mark if mark[0] == "$" else " " if mark == "<br>" else "" for mark in parts[1::2]]
    return " ".join("".join(parts).split())


def _in_pipes(text: str) -> str:
    parts = _KEPT.split(text)
    parts[::2] = [literal(part) for part in parts[::2]]
    parts[1::2] = [apart(part) if part[0] == "$" else part for part in parts[1::2]]
    return "".join(parts).replace("\n", " ").replace("|", "\\|")


def _in_html(cell: dict[str, Any], tag: str) -> str:
    parts = _KEPT.split(cell["text"])
    parts[::2] = [escape(part, quote=False) for part in parts[::2]]
    parts[1::2] = [part if part[0] == "<" else escape(part, quote=False) for part in parts[1::2]]
    spans = "".join(
        f' {name}="{cell[key]}"' for name, key in (("rowspan", "rows"), ("colspan", "columns")) if cell[key] > 1
    )
    return f"<{tag}{spans}>{''.join(parts)}</{tag}>"


def is_otsl(text: str) -> bool:
    """Whether a text has tokens of OTSL."""
    return _OTSL.search(text) is not None


def from_otsl(text: str) -> Table | None:
    """Return the table in a text of OTSL; None if it has no cells."""
    parts = _OTSL.split(text)
    rows: Rows = []
    row: list[dict[str, Any]] = []
    above: list[dict[str, Any]] = []
    owners: list[dict[str, Any]] = []
    heads: list[bool] = []
    more: dict[int, tuple[dict[str, Any], list[str]]] = {}
    """The cells with words in several places, and these words."""
    header = 0
    for mark, words in zip(parts[1::2], parts[2::2], strict=True):
        if mark == "nl":
            if owners:
                header += bool(heads) and all(heads) and header == len(rows)
                rows.append(row)
            above, owners, row, heads = owners, [], [], []
            continue
        column = len(owners)
        upper = above[column] if column < len(above) else None
        left = owners[-1] if owners else None
        owner = left if mark == "lcel" else upper if mark in {"ucel", "xcel"} else None
        if owner is None:
            owner = {"text": dollars(" ".join(words.split())), "rows": 1, "columns": 1}
            row.append(owner)
            heads.append(mark == "ched" or (mark == "ecel" and bool(heads) and heads[-1]))
        elif mark == "lcel" and any(owner is cell for cell in row[-1:]):
            owner["columns"] += 1
        elif mark in {"ucel", "xcel"} and (not owners or owners[-1] is not owner):
            owner["rows"] += 1
        if words.strip() and mark in {"lcel", "ucel", "xcel"}:
            more.setdefault(id(owner), (owner, [owner["text"]]))[1].append(" ".join(words.split()))
        owners.append(owner)
    if owners:
        rows.append(row)
    for owner, texts in more.values():
        owner["text"] = " ".join(filter(None, texts))
    return Table(rows, header) if any(rows) else None


def from_html(text: str) -> list[Table | str]:
    """Return the tables of some HTML, and its other texts, in order."""
    found: list[Table | str] = []
    for block in hypertext.blocks(_INLINE.sub(_kept, text)):
        if block["type"] == "table":
            for row in block["rows"]:
                for cell in row:
                    cell["text"] = _BOLD.sub(r"\1", dollars(cell["text"]))
            found.append(Table(block["rows"], block["header"]))
        else:
            found.append(block["text"])
    return found


def _kept(match: re.Match[str]) -> str:
    """Hide the markup that cells keep from the reader of tables."""
    name = match["name"].lower()
    if name in {"sub", "sup"}:
        return f"&lt;{match['end']}{name}&gt;"
    if name == "math":
        return "$"
    if name == "input" and "checkbox" in match["more"]:
        return "[x] " if "checked" in match["more"] else "[ ] "
    if name in {"br", "p", "div"}:
        return " &lt;br&gt; " if name == "br" else " "
    return ""


def _unescaped(markdown: str) -> str:
    parts = _KEPT.split(markdown.replace("\\|", "|"))
    parts[::2] = [hypertext.unescape(_BOLD.sub(r"\1", _BACKSLASH.sub(r"\1", part))) for part in parts[::2]]
    return "".join(parts)


def from_pipes(text: str) -> Table | None:
    """Return the Markdown table that a text is; None if it is something else."""
    lines = text.strip().split("\n")
    if len(lines) < 2 or "|" not in lines[0] or "-" not in lines[1] or not _PIPE_RULE.fullmatch(lines[1]):
        return None
    rows: Rows = []
    for line in [lines[0], *lines[2:]]:
        cells = _PIPE.split(line.strip().removeprefix("|"))
        if len(cells) > 1 and not cells[-1].strip():
            cells.pop()
        rows.append([{"text": _unescaped(cell.strip()), "rows": 1, "columns": 1} for cell in cells])
    return Table(rows, 1)


def count_unequal(found: Sequence[Table], markdown: str) -> int:
    """Return how many tables have rows of unequal length: of the tables that were found as HTML or OTSL, and of those
    in the Markdown."""
    return sum(table.unequal for table in [*found[:_MAX_COUNTED], *islice(_in_markdown(markdown), _MAX_COUNTED)])


def _in_markdown(text: str) -> Iterator[Table]:
    lines = text.split("\n")
    in_code = False
    rows: list[str] = []
    for number, line in enumerate([*lines, ""]):
        in_code ^= line.startswith("```")
        if not rows and not in_code and "|" in line and number + 1 < len(lines) and "-" in lines[number + 1]:
            rows = [line] if _PIPE_RULE.fullmatch(lines[number + 1]) else []
        elif rows and "|" in line:
            rows.append(line)
        elif rows:
            table = from_pipes("\n".join(rows))
            rows = []
            if table:
                yield table
