"""What `penstock screenshots add` shows while frames are analysed: a bar on a terminal, elsewhere a line a change."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import progress as bars

from pipeline.interfaces.cli.output import count, err, one_line
from pipeline.interfaces.cli.screenshots.common import said_of

if TYPE_CHECKING:
    from pipeline.flows.screenshots.states import WorkStatus
    from pipeline.standalone.stack import Stack

_TROUBLE_S = 5.0
"""How long nothing may move before it is said what keeps work from going on."""


def wait_for(stack: "Stack", shot_ids: Sequence[int], *, quiet: bool) -> "dict[int, WorkStatus]":
    """Wait until these frames are analysed or given up; how each stands then. Keeps the stack up meanwhile."""
    from tasks import screenshots

    on_terminal = err.is_terminal and not quiet
    columns = (
        bars.TextColumn("analysing"), bars.BarColumn(30), bars.TextColumn("{task.fields[figures]}"),
        bars.TimeElapsedColumn(),
    )  # fmt: skip
    trouble = _Trouble(stack, quiet=quiet)
    found: dict[int, WorkStatus] = {}
    with bars.Progress(*columns, console=err, disable=not on_terminal) as shown:
        task = shown.add_task("analysing", total=len(shot_ids), figures="")
        last = ""
        for found in screenshots.follow(shot_ids, idle=trouble.look):
            trouble.moved(found)
            done, figures = _figures(found, len(shot_ids))
            shown.update(task, completed=done, figures=figures)
            if figures != last and not on_terminal and not quiet:
                err.print(f"analysing: {figures}", soft_wrap=True)
            last = figures
    return found


def _figures(found: "dict[int, WorkStatus]", total: int) -> tuple[int, str]:
    """(frames that are done with, how all of them stand in words)."""
    by = Counter(state.value for state in found.values())
    given_up, gone = by["failed_permanent"], total - len(found)
    done = by["succeeded"] + given_up + gone
    parts = [f"{by['succeeded']:,}/{count(total, 'screenshot')}"]
    parts += [f"{given_up:,} failed"] if given_up else []
    parts += [f"{by['failed']:,} will be tried again"] if by["failed"] else []
    parts += [f"{gone:,} deleted meanwhile"] if gone else []
    return done, ", ".join(parts)


class _Trouble:
    """Sees to the stack, and says what keeps work from going on, each thing once."""

    def __init__(self, stack: "Stack", *, quiet: bool) -> None:
        self._stack = stack
        self._quiet = quiet
        self._told = {""}
        self._before: dict[int, WorkStatus] = {}
        self._moved_at = time.monotonic()

    def moved(self, found: "dict[int, WorkStatus]") -> None:
        if found != self._before:
            self._before, self._moved_at = found, time.monotonic()

    def look(self) -> None:
        self._stack.ensure()
        if self._quiet:
            return
        self._tell_retries()
        if time.monotonic() - self._moved_at < _TROUBLE_S:
            return
        from pipeline.flows.screenshots.status import closed
        from pipeline.storage.context import get_context

        shut = [f"{reason}: its work waits, and goes on by itself" for reason in closed(get_context())]
        for sentence in [self._stack.trouble(), *shut]:
            self._tell(sentence, sentence)

    def _tell_retries(self) -> None:
        """Each reason once, however often it comes again."""
        if not any(state.value == "failed" for state in self._before.values()):
            return
        from pipeline.flows.screenshots.status import retries
        from pipeline.storage.context import get_context

        for retry in retries(get_context()):
            if retry.kind == "batch":
                self._tell(retry.reason, said_of(retry))

    def _tell(self, key: str, sentence: str) -> None:
        if key not in self._told:
            self._told.add(key)
            err.print(f"[yellow]Note:[/yellow] {one_line(sentence)}", soft_wrap=True)
