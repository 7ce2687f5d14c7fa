"""What a command shows while it waits for work: bars on a terminal, elsewhere a line every few seconds.

Meanwhile it keeps the stack up, and says why work waits.
"""

import time
from collections.abc import Callable, Iterable
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
"""More would scroll."""
PATIENCE_S = 5.0
"""How long nothing may move before a command asks what is holding the work up."""
LINE_EVERY_S = 5.0
"""How often a line says how far work is where there is no terminal; one that says nothing new has to wait for …"""
SAME_LINE_EVERY_S = 60.0
_WIDE = 80
"""Columns that a terminal needs before there is room for bars and times."""


@dataclass(frozen=True)
class Bar:
    """How far something is: `done` of `total` units (None: not known yet), and markup to show beside the bar."""

    name: str
    done: int
    total: int | None
    figures: str
    state: str = ""
    busy: bool = False
    """Units are in progress: no need to ask what holds the work up."""
    waits: str = ""
    """What it waits for, in words."""


class Words(bars.ProgressColumn):
    """Markup that a bar carries: its description, or one of its fields."""

    def __init__(self, field: str = "", justify: "JustifyMethod" = "left") -> None:
        super().__init__(Column(no_wrap=True, justify=justify))
        self._field = field

    def render(self, task: bars.Task) -> Text:
        return marked(str(task.fields[self._field]) if self._field else task.description)


class Progress:
    """Bars on standard error while this context lasts, and sentences above them. Not a terminal: sentences only."""

    def __init__(
        self, stack: "Stack", *, interrupted: str, quiet: bool = False, patience_s: float = PATIENCE_S
    ) -> None:
        """`interrupted`: what Ctrl-C says. `quiet`: show nothing but that."""
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
        self._told = {""}
        self._moved_at = time.monotonic()
        self.state: Any = None
        """What `follow` saw last."""

    def __enter__(self) -> "Progress":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
        if kind is KeyboardInterrupt:
            err.print(("\n" if self._on_terminal else "") + self._interrupted, soft_wrap=True)

    def show(self, key: str, bar: Bar) -> None:
        """Show or update the bar of `key`, the first one's on top; harmless if there is no room for another one."""
        _, pace = self._known.get(key, (bar, Pace()))
        self._known[key] = bar, pace
        if bar.total is not None:  # else what was done before may still come to light, and that says nothing
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
        """Remove a bar, which makes room for another one."""
        self._known.pop(key, None)
        if key in self._shown:
            self._bars.remove_task(self._shown.pop(key))

    def _figures(self, bar: Bar, pace: Pace) -> str:
        return ", ".join(part for part in (bar.figures, pace.words(bar.total, time.monotonic())) if part)

    def _say_how_far(self) -> None:
        """Where there is no terminal: a line now and then, about the first bar."""
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
        """Say something (markup) above the bars."""
        if not self._quiet:
            err.print(sentence, soft_wrap=True)

    def follow(self, states: Iterable[State], bar_of: Callable[[State], Bar]) -> State:
        """Show how one thing goes until `states` (never empty) ends; the last of them.

        Not a terminal: a line whenever the figures change.
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
        """Keep the stack up; if nothing has moved for a while, say what is wrong and the `reasons` why work waits."""
        if time.monotonic() - self._moved_at >= self._patience_s:
            for sentence in (self._stack.trouble(), *reasons()):
                self.note_once(sentence)
        self._say_how_far()
        self._stack.ensure()

    def note_once(self, sentence: str, key: str = "") -> None:
        """Note a sentence unless it, or another one with the same `key`, was noted before."""
        if (key or sentence) not in self._told:
            self._told.add(key or sentence)
            self.note(f"[yellow]Note:[/yellow] {one_line(sentence)}")


def _widths(width: int) -> tuple[int, int]:
    """The widths of names and of bars on a terminal; 0: no bars."""
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
