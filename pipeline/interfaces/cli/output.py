"""How output looks: results go to standard output, everything else to standard error."""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from pipeline.engine.views import plain


def _console(stream: TextIO, **options: Any) -> Console:
    # Pipes and files have no width: never break or cut a line there.
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
    "completed": "green",
    "succeeded": "green",
    "failed": "yellow",
    "failed_permanent": "red",
}
Item = TypeVar("Item")
_GAP = "  "
_LEAST_WIDTH, _LEAST_LAST = 12, 30
"""The least widths of a column that may be shortened: any one, and the last one."""


def print_json(value: Any) -> None:
    """Print a view, or a container of views, as JSON on standard output."""
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, default=str) + "\n"
    # What UTF-8 cannot hold, such as a file name in another encoding, becomes a JSON escape.
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode())


class Table:
    """A plain table, one line a row, easy to grep and to copy.

    Marks behind a column's name: `?` leave it out on a narrow terminal, `~` shorten it there, `>` align it to the
    right. The last column, unless `~`, may be of any length: the terminal wraps it.
    """

    def __init__(self, *columns: str) -> None:
        self._marks = [column[len(column.rstrip(">?~")) :] for column in columns]
        names = [column.rstrip(">?~") for column in columns]
        self._rows = [[Text(name, style="bold") for name in names]]

    def add(self, *cells: str) -> None:
        """Add a row; cells may hold markup."""
        self._rows.append([Text.from_markup(cell) for cell in cells])

    def print(self) -> None:
        """Print the table on standard output."""
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
        for index in sorted(gives & widths.keys()):
            widths[index] += max(0, min(natural[index] - widths[index], room - _line_width(widths)))
        return {**widths, last: natural[last]} if last in widths and last not in gives else widths


def print_list(
    found: Sequence[Item], columns: Sequence[str], row: Callable[[Item], Sequence[str]], *, as_json: bool, none: str
) -> None:
    """Print `found` as JSON, or as a table of one `row` (markup) each; `none` says that there is nothing to list."""
    if as_json:
        print_json(found)
    elif not found:
        err.print(none)
    else:
        table = Table(*columns)
        for item in found:
            table.add(*row(item))
        table.print()


def _line_width(widths: dict[int, int]) -> int:
    return sum(widths.values()) + len(_GAP) * (len(widths) - 1)


def _fit(cell: Text, width: int, *, right: bool) -> Text:
    fitted = cell.copy()
    fitted.truncate(width, overflow="ellipsis")
    fitted.align("right" if right else "left", width)
    return fitted


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values (markup), one pair a line."""
    width = max(len(name) for name, _ in pairs) + len(_GAP)
    for name, value in pairs:
        out.print(f"{name:<{width}}{value}".replace("\n", "\n" + " " * width), soft_wrap=True)


def state(name: str) -> str:
    """A state's name in its colour."""
    style = STYLES.get(name, "cyan")
    return f"[{style}]{name}[/{style}]"


def count(number: int, noun: str) -> str:
    """`1 page`, `2 pages`, `3 batches`."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def printable(text: str) -> str:
    """A text without characters that a terminal would take as commands."""
    return "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text)


def one_line(text: str | None, width: int | None = None) -> str:
    """A text as one printable line, cut at `width` characters, with its markup escaped."""
    flat = printable(" ".join((text or "").split()))
    return escape(flat if width is None or len(flat) <= width else flat[: width - 1] + "…")
