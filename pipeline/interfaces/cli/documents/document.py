"""Shared by commands for one document: its id as an argument, and the report of an action."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.interfaces.cli.command import ready, warn_if_no_stack
from pipeline.interfaces.cli.output import err, one_line, state

if TYPE_CHECKING:
    from pipeline.interfaces.cli.convert.job import Job
    from pipeline.operations.documents import Document
    from pipeline.standalone.stack import Stack

Id = Annotated[str, typer.Argument(metavar="ID", help="The document's id, or its beginning.")]
Wait = Annotated[
    bool,
    typer.Option("--wait", help="Wait for the end, and start a stack if none runs; exit as `penstock convert` does."),
]


def resolved(prefix: str) -> str:
    """The document's id that begins with `prefix`. Raises `UserError` for none or several."""
    from pipeline.operations.documents import resolve

    return resolve(prefix)


def carry_out(
    act: "Callable[[], Document]",
    done: "str | Callable[[Document], str]",
    *,
    wait: bool = False,
    before: "Document | None" = None,
) -> None:
    """Call `act` and print the document with the words `done` for the act, or those that `done` makes of it.

    If it is not settled and no stack runs, hint at `penstock up`.

    `wait`: show its progress until it is at rest or paused, on the running stack or on one of its own, and exit with
    the exit code that `penstock convert` would. `before`: the document before the act, if the report is to leave out
    the pages that went to other providers before.
    """
    if not wait:
        document = act()
        _print_result(document, done)
        if not document.settled:
            warn_if_no_stack()
        return
    from pipeline.interfaces.cli.convert.job import line
    from pipeline.standalone.stack import using_stack

    with ExitStack() as held:
        with err.status("Starting …"):
            stack = held.enter_context(using_stack(ready()))
        document = act()
        _print_result(document, done)
        job = _followed(document, stack)
    job.before = before
    err.print(line(job), soft_wrap=True)
    if job.exit_code:
        raise typer.Exit(job.exit_code)


def _print_result(document: "Document", done: "str | Callable[[Document], str]") -> None:
    name = one_line(document.filename)
    words = done if isinstance(done, str) else done(document)
    err.print(f"{document.id} {name}: {words}. Now {state(document.status.name)}", soft_wrap=True)


def _followed(document: "Document", stack: "Stack") -> "Job":
    """Show a document's progress until it is at rest or paused; return its job then."""
    from pipeline.interfaces.cli.convert.board import Board
    from pipeline.interfaces.cli.convert.job import Job
    from pipeline.interfaces.cli.convert.targets import Target
    from pipeline.interfaces.cli.progress import Progress
    from pipeline.operations.documents import watch

    interrupted = (
        f"Interrupted. Nothing is lost: `penstock up` continues it, `penstock documents show {document.id}` says how "
        "far it is."
    )
    job = Job(Target(Path(document.filename), None), document=document)
    with Progress(stack, interrupted=interrupted, patience_s=0) as progress:
        board = Board([job], progress)
        for now in watch(document.id, idle=board.keep):
            job.document, job.ended = now, now.settled
            board.show(job)
    return job
