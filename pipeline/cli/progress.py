"""A bar for each file on a terminal; a line for each file elsewhere."""

from types import TracebackType
from typing import TYPE_CHECKING

from rich import progress as bars

from pipeline.cli.output import err, one_line, state

if TYPE_CHECKING:
    from tasks.documents import Document

MAX_BARS = 12
"""More would scroll: further files are counted in the bar for all of them."""


class Progress:
    """What `penstock convert` shows while it works, on standard error."""

    def __init__(self, total: int) -> None:
        self._live = err.is_terminal
        self._bars = bars.Progress(
            bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn(),
            bars.TextColumn("{task.fields[state]}"), bars.TimeElapsedColumn(), console=err, disable=not self._live,
        )  # fmt: skip
        self._tasks: dict[str, bars.TaskID] = {}
        self._settled: set[str] = set()
        self._all = self._bars.add_task("all files", total=total, state="") if total > 1 else None

    def __enter__(self) -> "Progress":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def show(self, name: str, document: "Document") -> None:
        """Show how a document stands."""
        if document.settled and document.id not in self._settled:
            self._settled.add(document.id)
            self._count(one_line(name, 40), document.status.name, document.pages)
        if document.id not in self._tasks:
            if len(self._tasks) >= MAX_BARS:
                return
            self._tasks[document.id] = self._bars.add_task(one_line(name, 40), total=None, state="")
        self._bars.update(
            self._tasks[document.id], total=document.pages or None,
            completed=document.completed_count + document.failed_count, state=state(document.status.name),
        )  # fmt: skip

    def failed(self, name: str, reason: str) -> None:
        """Show that a file was refused."""
        self._count(one_line(name, 40), "REFUSED", 0)
        if self._live and self._all is not None:
            self._bars.console.print(f"[red]{one_line(name, 40)}[/red]: {one_line(reason, 300)}")

    def note(self, sentence: str) -> None:
        self._bars.console.print(sentence)

    def _count(self, name: str, status: str, pages: int) -> None:
        if self._all is not None:
            self._bars.advance(self._all)
        if not self._live:
            err.print(f"{name}: {status}" + (f", {pages} pages" if pages else ""), soft_wrap=True)
