"""`penstock screenshots watch` and `capture`: ingest frames as they come, until Ctrl-C."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.engine.errors import PenstockError, UserError
from pipeline.engine.nouns import count
from pipeline.interfaces.cli.command import ready
from pipeline.interfaces.cli.output import err, one_line
from pipeline.interfaces.cli.screenshots.intake import Job, Source, left_out, line, take
from pipeline.interfaces.cli.screenshots.sources import source_key

if TYPE_CHECKING:
    from pipeline.flows.screenshots.frames.capture import Captured, Capturer
    from pipeline.settings import ScreenshotSettings
    from pipeline.standalone.stack import Stack


def watch(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder into which another program saves screenshots.")
    ],
    source: Source = "screen:0",
    app: Annotated[str, typer.Option(help="The program in the pictures, if it is always the same.")] = "",
    title: Annotated[str, typer.Option(help="The window's title, if it is always the same.")] = "",
    existing: Annotated[bool, typer.Option("--existing", help="First ingest the pictures that are already there.")] = (
        False
    ),
) -> None:
    """Ingest every picture that appears in a folder, until Ctrl-C.

    [bold]penstock screenshots watch ~/Pictures/Screenshots --source screen:0[/bold]

    The command copies files once they are complete; yours stay where they are. Work runs on
    the stack of `penstock up`, or on one that this command starts and ends.
    """
    from threading import Event

    from pipeline.flows.screenshots.frames.files import is_picture
    from pipeline.reading.files.watcher import watch as files_in
    from pipeline.standalone.stack import using_stack

    settings = ready()
    source_key(source)
    frame = {"source": source, "app": app, "window_title": title}
    by: Counter[str] = Counter()
    # Before the stack starts, so that pictures that arrive during the start count as new, and a missing folder fails.
    pictures = files_in(folder, is_picture, Event(), existing=existing)
    with using_stack(settings) as stack:
        err.print(f"Watching {one_line(str(folder))} for {one_line(source)}. Ctrl-C ends it.", soft_wrap=True)
        try:
            for path in pictures:
                stack.ensure()
                job = Job(path)
                take(job, frame)
                by[job.outcome] += 1
                err.print(line(job), soft_wrap=True)
        except KeyboardInterrupt:
            err.print()
        finally:
            _print_end(by)


def capture(
    every: Annotated[
        float | None,
        typer.Option(min=0.2, metavar="SECONDS", help="Default: …__CAPTURE_INTERVAL_S, 5 s."),
    ] = None,
    monitor: Annotated[
        list[int] | None, typer.Option(min=1, help="Only this screen, counted from 1. Repeatable.")
    ] = None,
    window: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only this program's foremost window, or the window with this number (X11). Repeatable.",
        ),
    ] = None,
    exclude_app: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Never this program, such as '*KeePass*'. Repeatable."),
    ] = None,
    exclude_title: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Never a window with this title. Repeatable.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Capture once and end.")] = False,
) -> None:
    """Capture this machine's screens or windows at intervals, until Ctrl-C: screen:1, screen:2 …, window:Firefox.

    [bold]penstock screenshots capture --every 10 --exclude-app "*KeePass*"[/bold]
    [bold]penstock screenshots capture --window Firefox[/bold]

    Without --monitor and --window it captures the sources of PENSTOCK_SCREENSHOTS__CAPTURE_SOURCES, or else every
    screen. A worker of the role `capture` (part of `penstock up`) captures that setting's sources without this command.

    A frame that looks like a recent one is a duplicate and left out. The command captures no screen while an excluded
    program is in front, and no window of one, and blanks the excluded windows behind the front one; where it cannot
    tell, it says so and ends.
    Work runs on the stack of `penstock up`, or on one that this command starts and ends.
    """
    from pipeline.flows.screenshots.frames.capture import EVERY_SCREEN, Capturer
    from pipeline.flows.screenshots.live_settings import screenshots_in_force
    from pipeline.process import get_context
    from pipeline.settings import get_settings
    from pipeline.standalone.stack import using_stack

    own = ready().screenshots

    def rules() -> "ScreenshotSettings":
        """Return the settings with the exclusions of this moment, to which the options add."""
        current = screenshots_in_force(get_context())
        also = {
            "excluded_apps": [*current.excluded_apps, *(exclude_app or ())],
            "excluded_titles": [*current.excluded_titles, *(exclude_title or ())],
        }
        return current.model_copy(update=also)

    named = [*(f"screen:{number}" for number in monitor or ()), *(f"window:{name}" for name in window or ())]
    for source in named:
        source_key(source, "--window")
    sources = list(dict.fromkeys(named)) or own.capture_sources or [EVERY_SCREEN]
    with Capturer(rules()) as capturer, using_stack(get_settings()) as stack:
        _capture(capturer, rules, stack, sources, None if once else every or own.capture_interval_s)


def _capture(
    capturer: "Capturer",
    rules: "Callable[[], ScreenshotSettings]",
    stack: "Stack",
    sources: Sequence[str],
    interval_s: float | None,
) -> None:
    """Capture until Ctrl-C, or once without an interval. Raises `UserError` without a display, if programs are excluded
    and the windows are unknown, and once also if no source is there."""
    from pipeline.flows.screenshots.frames.capture import missing

    by: Counter[str] = Counter()
    absent: list[str] = []
    try:
        with err.status("Capturing …") as shown:
            while True:
                started = time.monotonic()
                capturer.rules = rules()
                frames = capturer.capture(sources)
                if interval_s is None and not frames:
                    raise UserError(f"no such source now: {', '.join(sources)}", code="not_found")
                _take(frames, by)
                absent, before = missing(sources, frames), absent
                for source in sorted({*absent} - {*before}):
                    err.print(f"[yellow]{one_line(source)}[/yellow] is not there, or not shown.", soft_wrap=True)
                if interval_s is None:
                    return
                stack.ensure()
                shown.update(f"Capturing: {_counted(by)}. Ctrl-C ends it.")
                time.sleep(max(0.0, started + interval_s - time.monotonic()))
    except KeyboardInterrupt:
        err.print()
    finally:
        _print_end(by)


def _take(frames: "Sequence[Captured]", by: Counter[str]) -> None:
    """Ingest these frames, and count each outcome in `by`; a refusal is printed, not raised."""
    from pipeline.operations import screenshots

    for captured in frames:
        frame = captured.frame
        if not captured.data:
            screenshots.leave_out(frame)
            by["excluded"] += 1
            continue
        try:
            intake = screenshots.ingest(
                captured.data, source=frame.source, app=frame.app, window_title=frame.window_title, at=frame.ts
            )
        except PenstockError as error:
            by["refused"] += 1
            err.print(f"[yellow]{one_line(frame.source)}[/yellow]: {one_line(str(error))}", soft_wrap=True)
        else:
            by[intake.reason or "accepted"] += 1


def _counted(by: Counter[str]) -> str:
    return ", ".join([f"{count(by['accepted'], 'screenshot')} ingested", *left_out(by)])


def _print_end(by: Counter[str]) -> None:
    waits = " `penstock screenshots status` shows frames that wait for analysis." if by["accepted"] else ""
    err.print(f"{_counted(by)}.{waits}", soft_wrap=True)
