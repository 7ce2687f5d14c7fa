"""What `penstock convert` shows while it works: bars on a terminal, a line for each file that is done elsewhere."""

from types import TracebackType
from typing import TYPE_CHECKING

from rich import progress as bars

from pipeline.interfaces.cli.output import count, err, one_line, state

if TYPE_CHECKING:
    from tasks.documents import Document

MAX_BARS = 12
"""More would scroll. Files that are done make room for others."""
_WIDE = 80
"""Columns of a terminal from which on there is room for bars and times."""


class Progress:
    """Bars on standard error, while this context lasts. Without a terminal there are only the lines."""

    def __init__(self, total: int) -> None:
        self._many = total > 1
        self._max_bars = min(MAX_BARS, max(1, err.height - 3))
        self._name_width, bar_width = _widths(err.width)
        self._bars = bars.Progress(*_columns(bar_width), console=err, disable=not err.is_terminal)
        self._shown: dict[str, bars.TaskID] = {}
        self._gone: set[str] = set()
        self._total = total
        self._done = 0
        self._all = self._bars.add_task("all files", total=total, pages="", state="") if self._many else None
        self._count()

    def __enter__(self) -> "Progress":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def show(self, name: str, document: "Document") -> None:
        """Show how a document stands."""
        if document.id in self._gone:
            return
        if document.id not in self._shown:
            if len(self._shown) >= self._max_bars:
                return
            self._shown[document.id] = self._bars.add_task(
                one_line(name, self._name_width), total=None, pages="", state=""
            )
        self._bars.update(
            self._shown[document.id], total=document.pages or None, pages=_pages(document),
            completed=document.completed_count + document.failed_count, state=state(document.status.name),
        )  # fmt: skip

    def done(self, line: str, document: "Document | None" = None) -> None:
        """A file is done: say `line` (markup). Among several its bar makes room for the next."""
        self._done += 1
        self._count()
        if self._many and document is not None:
            self._gone.add(document.id)
            if document.id in self._shown:
                self._bars.remove_task(self._shown.pop(document.id))
        if line:
            self.note(line)

    def _count(self) -> None:
        if self._all is not None:
            self._bars.update(self._all, completed=self._done, pages=f"{self._done:,}/{count(self._total, 'file')}")

    def note(self, sentence: str) -> None:
        """Say something above the bars."""
        self._bars.console.print(sentence, soft_wrap=True)


def _widths(width: int) -> tuple[int, int]:
    """Of the names and of the bars; 0: no bars."""
    if width < _WIDE:
        return max(10, width - 32), 0
    room = width - 42
    name = min(40, room * 2 // 3)
    return name, min(40, room - name)


def _columns(bar_width: int) -> list[bars.ProgressColumn]:
    name, pages = bars.TextColumn("{task.description}"), bars.TextColumn("{task.fields[pages]}", justify="right")
    stands = bars.TextColumn("{task.fields[state]}")
    if not bar_width:
        return [name, pages, stands]
    return [name, bars.BarColumn(bar_width), pages, stands, bars.TimeElapsedColumn()]


def _pages(document: "Document") -> str:
    if not document.pages:
        return ""
    failed = f", [red]{document.failed_count:,} failed[/red]" if document.failed_count else ""
    return f"{document.completed_count:,}/{count(document.pages, 'page')}{failed}"
