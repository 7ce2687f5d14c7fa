"""`penstock screenshots add`: ingests files, and reports the outcome of each."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.engine.errors import PenstockError, UserError
from pipeline.engine.nouns import count
from pipeline.interfaces.cli.command import Json, ready, warn_if_no_stack
from pipeline.interfaces.cli.output import err, one_line, print_json
from pipeline.interfaces.cli.progress import Bar, Progress
from pipeline.interfaces.cli.screenshots import ids
from pipeline.interfaces.cli.screenshots.sources import source_key
from pipeline.interfaces.cli.screenshots.status import retry_line
from pipeline.interfaces.cli.times import HOW, moment

if TYPE_CHECKING:
    from pipeline.flows.screenshots.states import WorkStatus
    from pipeline.operations.screenshots import Intake
    from pipeline.standalone.stack import Stack

DONE, FAILED, PARTIAL = 0, 1, 3
Source = Annotated[str, typer.Option(metavar="SOURCE", help="The source of the picture: screen:ID or window:ID.")]


@dataclass
class Job:
    """One file and its outcome."""

    path: Path
    intake: "Intake | None" = None
    error: str = ""
    state: "WorkStatus | None" = None

    @property
    def shot_id(self) -> int | None:
        """The number of the frame to analyse, perhaps a known one; None without a frame."""
        return self.intake.shot_id if self.intake else None

    @property
    def outcome(self) -> str:
        """`accepted`, or why not: `known`, `duplicate`, `excluded`, `inactive`, `refused`."""
        if self.intake is None:
            return "refused"
        return self.intake.reason or "accepted"

    @property
    def is_given_up(self) -> bool:
        """Whether the frame is stored but analysis failed; `error` says why."""
        return self.state is not None and self.state.value == "failed_permanent"

    @property
    def is_problem(self) -> bool:
        """Whether analysis failed, or the file gave no frame for another reason than a duplicate or an exclusion."""
        return self.is_given_up or bool(self.error) or self.outcome in {"refused", "inactive"}


def add(
    files: Annotated[list[Path], typer.Argument(metavar="FILES", help="PNG, JPEG, WebP, GIF, BMP, TIFF; or folders.")],
    source: Source = "screen:0",
    app: Annotated[str, typer.Option(help="The program in the picture, such as Firefox.")] = "",
    title: Annotated[str, typer.Option(help="The window's title.")] = "",
    at: Annotated[
        str, typer.Option(metavar="WHEN", help=f"The time of capture: {HOW}. Default: the file's time.")
    ] = "",
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait for analysis.")] = False,
    as_json: Json = False,
) -> None:
    """Ingest pictures, and wait for their analysis.

    [bold]penstock screenshots add desk.png --app Firefox --title Invoices[/bold]
    [bold]penstock screenshots add shots/ --source screen:1 --no-wait[/bold]

    Penstock copies the files; yours stay where they are. A picture that looks like a recent frame of its source is a
    duplicate and left out; `penstock screenshots rejected` lists those. Work runs on the stack of `penstock up`, or on
    one that this command starts. Run the same command again to continue interrupted work.

    Exit codes: 0 done (duplicates count as done), 1 nothing ingested or analysed, 2 wrong usage, 3 some
    files failed, 130 interrupted.
    """
    from pipeline.operations import screenshots
    from pipeline.standalone.stack import using_stack

    settings = ready()
    source_key(source)
    captured = moment(at, screenshots.time_zone(), "--at")
    jobs = [Job(path) for path in _pictures(files)]
    if not jobs:
        raise UserError("these folders hold no picture", code="usage")
    frame = {"source": source, "app": app, "window_title": title}
    _take(jobs, frame, captured, quiet=as_json)
    wanted = list(dict.fromkeys(job.shot_id for job in jobs if job.shot_id is not None))
    if not no_wait and not screenshots.settled(wanted):  # else no stack need start, which takes seconds
        with using_stack(settings) as stack:
            screenshots.batch_now(source)
            _follow(stack, wanted, quiet=as_json)
    if not no_wait:
        _print_given_up(jobs, screenshots.states(wanted), quiet=as_json)
    if as_json:
        print_json({"files": [_as_json(job) for job in jobs]})
    else:
        _print_end(jobs, waited=not no_wait)
    problems = sum(job.is_problem for job in jobs)
    raise typer.Exit(DONE if not problems else FAILED if problems == len(jobs) else PARTIAL)


def _pictures(inputs: Sequence[Path]) -> list[Path]:
    """The files named, and the pictures directly in the folders named, oldest first within a folder.

    A file that the user names may have any suffix; from a folder, take only pictures, and no links out of it.
    """
    from pipeline.flows.screenshots.frames.files import is_picture
    from pipeline.reading.files.user_file import is_file_below

    pictures: dict[Path, None] = {}
    for path in inputs:
        if path.is_dir():
            root = path.resolve()
            inside = [child for child in path.iterdir() if is_picture(child) and is_file_below(child, root)]
            pictures |= dict.fromkeys(sorted(inside, key=lambda child: (child.stat().st_mtime, child.name)))
        else:
            pictures[path] = None
    return list(pictures)


def _take(jobs: Sequence[Job], frame: dict[str, str], at: "datetime | None", *, quiet: bool) -> None:
    for job in jobs:
        take(job, frame, at)
        if not quiet:
            err.print(line(job), soft_wrap=True)


def take(job: Job, frame: dict[str, str], at: "datetime | None" = None) -> None:
    """Ingest a file; `job` records the outcome."""
    from pipeline.operations import screenshots

    try:
        job.intake = screenshots.ingest(job.path, at=at, **frame)
    except PenstockError as error:
        job.error = str(error)


def line(job: Job) -> str:
    """The outcome of a file, as one line."""
    name = one_line(str(job.path))
    intake = job.intake
    match job.outcome:
        case "accepted" if intake:
            return f"{name} → [bold]{ids.frame(intake.shot_id)}[/bold]"
        case "known" if intake:
            return f"{name}: already known as {ids.frame(intake.shot_id)}"
        case "duplicate" if intake:
            return (
                f"{name}: [yellow]duplicate[/yellow] of {ids.frame(intake.nearest_id)} "
                f"({intake.distance} of 256 bits differ, up to {intake.threshold} count as the same)"
            )
        case "inactive":
            return (
                f"{name}: [red]not ingested[/red]: its source is switched off (`penstock screenshots sources activate`)"
            )
        case "excluded":
            return f"{name}: left out: its program or title is excluded (`penstock screenshots exclusions`)"
    why = job.error.removeprefix(f"{job.path}").removeprefix(": ").strip()
    return f"{name}: [red]refused[/red]" + (f": {one_line(why)}" if why else "")


def _print_given_up(jobs: Sequence[Job], states: "dict[int, WorkStatus]", *, quiet: bool) -> None:
    for job in jobs:
        job.state = states.get(job.shot_id) if job.shot_id is not None else None
        if job.is_given_up and job.shot_id is not None:
            job.error = _why(job.shot_id)
            if not quiet:
                err.print(f"{one_line(str(job.path))}: [red]not analysed[/red]: {one_line(job.error)}", soft_wrap=True)


def _follow(stack: "Stack", shot_ids: Sequence[int], *, quiet: bool) -> None:
    """Wait until analysis of these frames has ended or failed, and keep the stack up."""
    from pipeline.operations import screenshots

    interrupted = (
        "Interrupted. Nothing is lost: run the same command again to continue, or `penstock up`. "
        "`penstock screenshots status` says what waits."
    )
    with Progress(stack, interrupted=interrupted, quiet=quiet) as progress:
        states = screenshots.follow(shot_ids, idle=lambda: keep(progress))
        progress.follow(states, lambda states: _bar(states, len(shot_ids)))


def keep(progress: "Progress") -> None:
    """Restart a dead stack, and say why frames wait: retries of failed batches at once, closed gates after a while."""
    from pipeline.flows.screenshots.status import closed, retries
    from pipeline.process import get_context

    if any(state.value == "failed" for state in (progress.state or {}).values()):
        for retry in retries(get_context()):
            if retry.kind == "batch":
                progress.note_once(retry_line(retry), key=retry.reason)
    progress.keep(
        lambda: [f"{reason}: its work waits, and continues once that is over" for reason in closed(get_context())]
    )


def _bar(states: "dict[int, WorkStatus]", total: int) -> "Bar":
    by = Counter(state.value for state in states.values())
    given_up, deleted = by["failed_permanent"], total - len(states)
    figures = f"{by['succeeded']:,}/{count(total, 'screenshot')}"
    figures += f", {given_up:,} failed" if given_up else ""
    figures += f", {by['failed']:,} will be tried again" if by["failed"] else ""
    figures += f", {deleted:,} deleted meanwhile" if deleted else ""
    return Bar("analysing", by["succeeded"] + given_up + deleted, total, figures)


def _why(shot_id: int) -> str:
    from pipeline.operations import screenshots

    try:
        return screenshots.screenshot(shot_id).error or "no reason on record"
    except UserError as error:
        return str(error)  # a user deleted it


def _print_end(jobs: Sequence[Job], *, waited: bool) -> None:
    analysed = sum(job.state is not None and job.state.value == "succeeded" for job in jobs)
    failed = sum(job.is_given_up for job in jobs)
    by = Counter(job.outcome for job in jobs)
    parts = [f"{count(by['accepted'], 'screenshot')} ingested"]
    parts += [f"{analysed:,} analysed"] if waited else []
    parts += left_out(by)
    parts += (
        [f"[red]{failed:,} could not be analysed[/red] (`penstock screenshots dead-letters` says why)"]
        if failed
        else []
    )
    err.print(", ".join(parts) + ".", soft_wrap=True)
    if not waited and by["accepted"]:
        warn_if_no_stack()


def left_out(by: "Counter[str]") -> list[str]:
    """Phrases such as `3 duplicate`: the number of files not ingested, for each reason that occurs."""
    return [f"{by[name]:,} {name}" for name in ("known", "duplicate", "excluded", "inactive", "refused") if by[name]]


def _as_json(job: Job) -> dict[str, Any]:
    intake = job.intake
    return {
        "input": str(job.path),
        "outcome": job.outcome,
        "id": job.shot_id,
        "status": job.state.value if job.state else None,
        "distance": intake.distance if intake else None,
        "nearest": intake.nearest_id if intake else None,
        "error": job.error or None,
    }
