"""The progress of a command that waits for work: bars on a terminal, elsewhere a line every few seconds.

It also keeps the stack up, and says why work waits.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rich import progress as bars
from rich.table import Column
from rich.text import Text

from pipeline.interfaces.cli.output import err, marked, one_line
from pipeline.interfaces.cli.pace import Pace

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from pipeline.standalone.stack import Stack

State = TypeVar("State")
MAX_BARS = 12
"""Bars on the screen at once: more would scroll."""
PATIENCE_S = 5.0
"""Seconds without progress after which a command says why the work waits."""
LINE_EVERY_S = 5.0
"""Seconds between lines without a terminal; an unchanged line waits for …"""
SAME_LINE_EVERY_S = 60.0
_WIDE = 80
"""Columns of a terminal with room for bars and times."""


@dataclass(frozen=True)
class Bar:
    """The progress of one piece of work: `done` of `total` units (None: unknown), and markup beside the bar."""

    name: str
    done: int
    total: int | None
    figures: str
    state: str = ""
    busy: bool = False
    """Whether units are in progress, so that nothing holds the work up."""
    waits: str = ""
    """The reason why it waits, in words."""


class Words(bars.ProgressColumn):
    """A bar's column of markup: its description, or one of its fields."""

    def __init__(self, field: str = "", justify: "JustifyMethod" = "left") -> None:
        super().__init__(Column(no_wrap=True, justify=justify))
        self._field = field

    def render(self, task: bars.Task) -> Text:
        return marked(str(task.fields[self._field]) if self._field else task.description)


class Progress:
    """Bars on standard error while this context lasts, with sentences above; without a terminal, only sentences."""

    def __init__(
        self, stack: "Stack", *, interrupted: str, quiet: bool = False, patience_s: float = PATIENCE_S
    ) -> None:
        """`interrupted`: the sentence after Ctrl-C. `quiet`: show only that. `patience_s`: the seconds without progress
        after which `keep` says why work waits."""
        self._stack = stack
        self._interrupted = interrupted
        self._quiet = quiet
        self._patience_s = patience_s
        self._on_terminal = err.is_terminal and not quiet
        self._name_width, bar_width = _widths(err.width)
        self._is_wide = bar_width > 0
        self._bars = bars.Progress(*_columns(bar_width), console=err, disable=not self._on_terminal)
        self._max_bars = min(MAX_BARS, max(1, err.height - 3))
        self._shown: dict[str, bars.TaskID] = {}
        self._known: dict[str, tuple[Bar, Pace]] = {}
        self._line, self._line_at = "", time.monotonic()
        self._printed = {""}
        self._moved_at = time.monotonic()
        self.state: Any = None
        """The last state that `follow` showed."""

    def __enter__(self) -> "Progress":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
        if kind is KeyboardInterrupt:
            err.print(("\n" if self._on_terminal else "") + self._interrupted, soft_wrap=True)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take the bars off the screen during the block, so that it can ask the user something."""
        self._bars.stop()
        try:
            yield
        finally:
            self._bars.start()

    def show(self, key: str, bar: Bar) -> None:
        """Show or update the bar of `key`; a new one comes last. Without room for another bar, shows nothing."""
        _, pace = self._known.get(key, (bar, Pace()))
        self._known[key] = bar, pace
        if bar.total is not None:  # else units done earlier may still appear, and distort the pace
            pace.see(bar.done, time.monotonic())
        name = one_line(bar.name, self._name_width)
        if key not in self._shown:
            if len(self._shown) >= self._max_bars:
                return
            self._shown[key] = self._bars.add_task(name, total=bar.total, figures="", state="")
        waits = f" [dim]{one_line(bar.waits, self._name_width)}[/dim]" if bar.waits and self._is_wide else ""
        self._bars.update(
            self._shown[key],
            description=name,
            total=bar.total,
            completed=bar.done,
            state=bar.state + waits,
            figures=self._figures(bar, pace) if self._is_wide else bar.figures,
        )

    def remove(self, key: str) -> None:
        """Remove a bar, to make room for another."""
        self._known.pop(key, None)
        if key in self._shown:
            self._bars.remove_task(self._shown.pop(key))

    def _figures(self, bar: Bar, pace: Pace) -> str:
        return ", ".join(part for part in (bar.figures, pace.words(bar.total, time.monotonic())) if part)

    def _say_how_far(self) -> None:
        """Without a terminal: print a line now and then, about the first bar."""
        if self._on_terminal or not self._known:
            return
        bar, pace = next(iter(self._known.values()))
        parts = [self._figures(bar, pace), " ".join(part for part in (bar.state, one_line(bar.waits)) if part)]
        line = f"{one_line(bar.name)}: {', '.join(part for part in parts if part)}"
        since = time.monotonic() - self._line_at
        if since >= (LINE_EVERY_S if line != self._line else SAME_LINE_EVERY_S):
            self._line, self._line_at = line, time.monotonic()
            self.note(line)

    def note(self, sentence: str) -> None:
        """Print a sentence (markup) above the bars, unless `quiet`."""
        if not self._quiet:
            err.print(sentence, soft_wrap=True)

    def follow(self, states: Iterable[State], bar_of: Callable[[State], Bar]) -> State:
        """Show each of `states` (never empty) until they end; return the last one.

        Without a terminal, print a line whenever the figures change.
        """
        last_line = ""
        for state in states:
            bar = bar_of(state)
            if state != self.state or bar.busy:
                self.state, self._moved_at = state, time.monotonic()
            self.show("", bar)
            line = f"{bar.name}: {bar.figures}"
            if line != last_line and not self._on_terminal:
                self._line_at = time.monotonic()
                self.note(line)
            last_line = line
        return cast("State", self.state)

    def keep(self, reasons: Callable[[], Iterable[str]] = tuple) -> None:
        """Restart a dead stack; after `patience_s` without progress, print its faults and the `reasons` why work waits,
        each once."""
        if time.monotonic() - self._moved_at >= self._patience_s:
            for sentence in (self._stack.trouble(), *reasons()):
                self.note_once(sentence)
        self._say_how_far()
        self._stack.ensure()

    def note_once(self, sentence: str, key: str = "") -> None:
        """Print a note, once for each `key` (default: the sentence)."""
        if (key or sentence) not in self._printed:
            self._printed.add(key or sentence)
            self.note(f"[yellow]Note:[/yellow] {one_line(sentence)}")


def _widths(width: int) -> tuple[int, int]:
    """The widths of names and of bars on a terminal of `width` characters; a bar's width of 0: no bars."""
    if width < _WIDE:
        return max(10, width - 32), 0
    room = width - 42
    name = min(40, room * 2 // 3)
    return name, min(40, room - name)


def _columns(bar_width: int) -> list[bars.ProgressColumn]:
    name, figures, state = Words(), Words("figures", justify="right"), Words("state")
    if not bar_width:
        return [name, figures, state]
    return [name, bars.BarColumn(bar_width), figures, state, bars.TimeElapsedColumn()]
