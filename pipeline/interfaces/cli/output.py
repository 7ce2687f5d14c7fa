"""How things look at the terminal: results on standard output, everything else on standard error."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.text import Text


def _console(stream: TextIO, **options: Any) -> Console:
    # Pipes and files have no width: a line there is never broken or cut.
    return Console(highlight=False, width=None if stream.isatty() else 10_000, **options)


out = _console(sys.stdout)
err = _console(sys.stderr, stderr=True)

STYLES = {
    "COMPLETED": "green",
    "FAILED": "red",
    "REFUSED": "red",
    "PARTIAL_FAILED": "yellow",
    "CANCELLED": "dim",
    "PAUSED": "magenta",
    "succeeded": "green",
    "failed": "yellow",
    "failed_permanent": "red",
}
_GAP = "  "
_LEAST_WIDTH, _LEAST_LAST = 12, 30
"""Of a column that may be shortened; of the last one, if it may."""


def print_json(value: Any) -> None:
    """JSON on standard output, for programs."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n"
    # What no UTF-8 can hold, such as a file name in another encoding, becomes a JSON escape.
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode())


class Table:
    """A plain table: one line a row, fit for `grep` and for being copied.

    What stands behind a column's name says how it gives way on a narrow terminal: `?` it is left out, `~` it is
    shortened. `>` aligns it to the right. The last column, if not `~`, may be of any length: the terminal breaks it.
    """

    def __init__(self, *columns: str) -> None:
        self._marks = [column[len(column.rstrip(">?~")) :] for column in columns]
        names = [column.rstrip(">?~") for column in columns]
        self._rows = [[Text(name, style="bold") for name in names]]

    def add(self, *cells: str) -> None:
        """Add a row; cells may hold markup."""
        self._rows.append([Text.from_markup(cell) for cell in cells])

    def print(self) -> None:
        """Print it on standard output."""
        widths = self._fitted(out.width)
        for row in self._rows:
            cells = [_fit(row[index], width, right=">" in self._marks[index]) for index, width in widths.items()]
            line = Text(_GAP).join(cells)
            line.rstrip()
            out.print(line, soft_wrap=True)

    def _fitted(self, room: int) -> dict[int, int]:
        """The columns to show and their widths."""
        last = len(self._marks) - 1
        natural = [max(row[index].cell_len for row in self._rows) for index in range(last + 1)]
        gives = {index for index, mark in enumerate(self._marks) if "~" in mark}
        widths = {i: min(n, _LEAST_WIDTH) if i in gives or i == last else n for i, n in enumerate(natural)}
        if last in gives:
            widths[last] = min(natural[last], _LEAST_LAST)
        for index in reversed(range(last + 1)):
            if "?" in self._marks[index] and _line_width(widths) > room:
                del widths[index]
        for index in gives:
            widths[index] += max(0, min(natural[index] - widths[index], room - _line_width(widths)))
        return {**widths, last: natural[last]} if last in widths and last not in gives else widths


def _line_width(widths: dict[int, int]) -> int:
    return sum(widths.values()) + len(_GAP) * (len(widths) - 1)


def _fit(cell: Text, width: int, *, right: bool) -> Text:
    fitted = cell.copy()
    fitted.truncate(width, overflow="ellipsis")
    fitted.align("right" if right else "left", width)
    return fitted


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Names and values (with markup), a line each."""
    width = max(len(name) for name, _ in pairs) + len(_GAP)
    for name, value in pairs:
        out.print(f"{name:<{width}}{value}".replace("\n", "\n" + " " * width), soft_wrap=True)


def state(name: str) -> str:
    """A state's name in its colour."""
    style = STYLES.get(name, "cyan")
    return f"[{style}]{name}[/{style}]"


def count(number: int, noun: str) -> str:
    """`1 page`, `2 pages`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def ago(moment: datetime | None) -> str:
    """How long ago, roughly."""
    if moment is None:
        return ""
    seconds = max(0, int((datetime.now(UTC) - moment).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def printable(text: str) -> str:
    """A text without anything that a terminal would take for a command."""
    return "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text)


def one_line(text: str | None, width: int | None = None) -> str:
    """A text as one line, cut at `width` characters, printable, and safe from being read as markup."""
    flat = printable(" ".join((text or "").split()))
    return escape(flat if width is None or len(flat) <= width else flat[: width - 1] + "…")
