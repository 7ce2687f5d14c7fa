"""What `penstock music start --wait` shows: a bar on a terminal, elsewhere a line whenever something changed."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer
from rich import progress as bars
from rich.markup import escape

from pipeline.interfaces.cli.output import count, err, printable

if TYPE_CHECKING:
    from pipeline.standalone.stack import Stack
    from tasks.music import MusicStatus, RunView

FAILED, PARTIAL = 1, 3
_LOOK_S = 0.5
_TROUBLE_S = 5.0
"""How long nothing may be under way before it is said what keeps work from going on."""


def follow(stack: "Stack", run: "RunView", *, quiet: bool) -> "MusicStatus":
    """Show how a run goes until it has ended; how it stands then. Keeps the stack up meanwhile."""
    columns = (
        bars.TextColumn("{task.description}"), bars.BarColumn(30), bars.TextColumn("{task.fields[figures]}"),
        bars.TimeElapsedColumn(),
    )  # fmt: skip
    on_terminal = err.is_terminal and not quiet
    try:
        with bars.Progress(*columns, console=err, disable=not on_terminal) as shown:
            task = shown.add_task("syncing", total=None, figures="")
            last = ""
            for found in _looks(stack, run, quiet=quiet):
                figures = _figures(found)
                shown.update(
                    task, description=found.pipeline_state.value, figures=figures, total=_all(found) or None,
                    completed=found.completed_jobs + found.failed_jobs,
                )  # fmt: skip
                line = f"{found.pipeline_state.value}: {figures}"
                if line != last and not on_terminal and not quiet:
                    err.print(line, soft_wrap=True)
                last = line
    except KeyboardInterrupt:
        err.print(
            "\nThe run is kept: `penstock up` goes on with it, `penstock music start --wait` does not start another, "
            "`penstock music stop` ends it.", soft_wrap=True,
        )  # fmt: skip
        raise
    return found


def _looks(stack: "Stack", run: "RunView", *, quiet: bool) -> "Iterator[MusicStatus]":
    """How the run stands, again and again, until it has ended."""
    from tasks import music

    moved_at, before, told = time.monotonic(), None, ""
    while True:
        found = music.status()
        yield found
        if found.run is None or found.run.id != run.id or found.run.outcome is not None:
            return
        stack.ensure()
        if found != before or found.active_jobs:
            moved_at, before = time.monotonic(), found
        if time.monotonic() - moved_at > _TROUBLE_S and (trouble := stack.trouble()) not in {"", told}:
            told = trouble
            if not quiet:
                err.print(f"[yellow]Note:[/yellow] {escape(trouble)}", soft_wrap=True)
        time.sleep(_LOOK_S)


def _all(found: "MusicStatus") -> int:
    done = found.completed_jobs + found.failed_jobs
    return done + found.active_jobs + found.waiting_jobs + found.delayed_jobs


def _figures(found: "MusicStatus") -> str:
    done = found.completed_jobs + found.failed_jobs
    text = f"{done:,}/{count(_all(found), 'batch').replace('batchs', 'batches')}"
    text += f", {found.failed_jobs:,} failed" if found.failed_jobs else ""
    text += f", {found.stand_in} stands in" if found.stand_in else ""
    return text + (f" ({escape(printable(found.reason))})" if found.reason else "")


def tell_end(found: "MusicStatus") -> None:
    """Say how a run ended, and leave with its exit code: 0 done, 1 failed or stopped, 3 some songs failed."""
    run = found.run
    if run is not None and run.outcome == "failed":
        err.print(f"penstock: the run failed: {run.error}", soft_wrap=True, markup=False)
        raise typer.Exit(FAILED)
    if run is not None and run.outcome == "stopped":
        err.print("penstock: the run was stopped; `penstock music start` goes on.", soft_wrap=True, markup=False)
        raise typer.Exit(FAILED)
    if found.failed_songs or found.failed_jobs:
        err.print(
            f"{count(found.failed_songs, 'song')} failed: `penstock music show --status failed` says why, "
            "`penstock music start --failed` tries again.", soft_wrap=True,
        )  # fmt: skip
        raise typer.Exit(PARTIAL)
    err.print(f"Done: {count(found.songs.get('COMPLETED', 0), 'song')} of {found.total_songs:,} are described.")
