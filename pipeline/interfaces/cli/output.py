"""The one printer of the command line: results go to standard output, everything else to standard error.

It shows texts of strangers (names, titles, pages, errors, replies), and never obeys them: no printed text has control
characters except our own colours, even where the code forgot to escape it, and markup knows only these colours.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO, TypeVar

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from pipeline.engine.control_characters import json_escaped, printable, printable_line
from pipeline.engine.errors import UserError
from pipeline.engine.views import plain

_TAG = re.compile(r"\[(/?)(bold|dim|red|green|yellow|magenta|cyan)\]")
_NO_TAG = "\0"
"""Marks a bracket that would otherwise begin a tag. `printable` removes it from strangers' texts."""


class Printer(Console):
    """A console that prints any text: without links, emoji codes, errors about markup, or control characters."""

    def render_str(self, text: str, *, markup: bool | None = None, **_: Any) -> Text:
        return Text(printable(text)) if markup is False else marked(text)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        written = ""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                written = _after(written, segment.text)
                yield Segment(written, segment.style)


def _console(stream: TextIO, **options: Any) -> Console:
    # Pipes and files have no width: do not break or cut their lines.
    return Printer(highlight=False, width=None if stream.isatty() else 10_000, **options)


out = _console(sys.stdout)
err = _console(sys.stderr, stderr=True)


def marked(text: str) -> Text:
    """Markup as coloured text. Other text in brackets stays unchanged."""
    shown, styles, done = Text(), list[str](), 0

    def add(piece: str) -> None:
        shown.append(_after(shown.plain, piece.replace(_NO_TAG, "")), " ".join(styles))

    for tag in _TAG.finditer(text):
        add(text[done : tag.start()])
        done = tag.end()
        if not tag[1]:
            styles.append(tag[2])
        elif tag[2] in styles:
            styles.remove(tag[2])
    add(text[done:])
    return shown


def _after(before: str, text: str) -> str:
    """Return `text` with control characters as escapes. `before`: the text printed before it, because a joiner at the
    start of `text` stays only after certain letters."""
    last = before[-1:]
    return printable(last + text)[len(last) :]


def escape(text: str) -> str:
    """Markup that shows this text literally, with its line breaks."""
    return _TAG.sub(lambda tag: f"[{_NO_TAG}{tag[0][1:]}", printable(text))


def one_line(text: str | None, width: int | None = None) -> str:
    """Markup that shows a text as one line, cut at `width` characters."""
    flat = printable_line(text or "")
    return escape(flat if width is None or len(flat) <= width else flat[: width - 1] + "…")


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
"""The least widths of a shortened column: of any column, and of the last one."""


def print_json(value: Any) -> None:
    """Print a view, or a container of views, as JSON on standard output."""
    # File names that are not UTF-8 become JSON escapes too.
    sys.stdout.write(json_escaped(json.dumps(plain(value), indent=2, ensure_ascii=False, default=str)) + "\n")


def print_text(text: str) -> None:
    """Write a result to standard output: unchanged to a file or program, printable on a terminal."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)


def print_content(content: bytes, *, binary: bool) -> None:
    """Write a result to standard output, as `print_text` does. Raises `UserError` for a binary one on a terminal."""
    if not binary:
        print_text(content.decode())
    elif sys.stdout.isatty():
        raise UserError("this format is not for a terminal: name a file with -o", code="usage")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)


def confirm(question: str) -> None:
    """Ask the user on standard error; unless they agree, end the command with exit code 1."""
    typer.confirm(printable_line(question), abort=True, err=True)


class Table:
    """A plain table, one line a row, easy to grep and to copy.

    Marks behind a column's name: `?` leave it out on a narrow terminal, `~` shorten it there, `>` align it to the
    right. The last column, unless `~`, may have any length: the terminal wraps it.
    """

    def __init__(self, *columns: str) -> None:
        self._marks = [column[len(column.rstrip(">?~")) :] for column in columns]
        names = [column.rstrip(">?~") for column in columns]
        self._rows = [[Text(name, style="bold") for name in names]]

    def add(self, *cells: str) -> None:
        """Add a row; cells may hold markup."""
        self._rows.append([marked(cell.replace("\n", " ")) for cell in cells])

    def print(self) -> None:
        """Print the table on standard output."""
        widths = self._fitted(out.width)
        for row in self._rows:
            cells = [_fit(row[index], width, right=">" in self._marks[index]) for index, width in widths.items()]
            line = Text(_GAP).join(cells)
            line.rstrip()
            out.print(line, soft_wrap=True)

    def _fitted(self, room: int) -> dict[int, int]:
        """The columns to show on a terminal of `room` characters, as a dict of their indexes and widths."""
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
    items: Sequence[Item], columns: Sequence[str], row: Callable[[Item], Sequence[str]], *, as_json: bool, none: str
) -> None:
    """Print `items` as JSON, or as a table with a `row` (markup) for each. `none`: the sentence that replaces an empty
    table, on standard error."""
    if as_json:
        print_json(items)
    elif not items:
        err.print(none)
    else:
        table = Table(*columns)
        for item in items:
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
    """A state's name as markup in its colour."""
    style = STYLES.get(name, "cyan")
    return f"[{style}]{name}[/{style}]"
