"""Runs jobs of `penstock convert` on a stack: submits, watches, and writes each finished result at once."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.engine.errors import UserError
from pipeline.engine.nouns import count
from pipeline.interfaces.cli.convert.board import Board
from pipeline.interfaces.cli.convert.job import Job
from pipeline.interfaces.cli.convert.options import Wish, ask_password, can_open, worded
from pipeline.interfaces.cli.output import err, one_line
from pipeline.interfaces.cli.progress import Progress

if TYPE_CHECKING:
    from pipeline.operations.documents import Document
    from pipeline.standalone.demand import Demand


def run(jobs: Sequence[Job], wish: Wish, demanded: "Demand") -> None:
    """Convert the files of those jobs that have not ended, on the stack, until each has its outcome. Raises `UserError`
    if a running worker does not know the provider."""
    from pipeline.process import get_context
    from pipeline.providers import registry
    from pipeline.settings import get_settings

    advice = "`penstock up` continues it" if wish.options.fresh else "run the same command again to continue"
    provider = wish.options.provider or get_settings().provider

    last = next((job for job in reversed(jobs) if not job.ended), None)
    first: dict[Path, Job] = {}

    def submit_next(job: Job, progress: Progress) -> None:
        nonlocal wish
        same = first.setdefault(job.target.source, job)
        if same is job:
            wish = _submit(job, wish, progress)
        else:  # the same file in another format
            job.started, job.document = same.started, same.document
            job.error, job.code, job.ended = same.error, same.code, same.ended
            with suppress(OSError):  # submitting has reported the fault
                job.origin = job.origin or wish.origin(job.target.source, job.form, job.target.inside)
        if job is last and (sentence := _read_here(jobs, provider)):
            progress.note(sentence)

    follow(
        jobs,
        demanded,
        begin=lambda: registry.check_workers(get_context().redis, provider),
        submit=submit_next,
        finish=partial(finish, wish=wish),
        advice=advice,
    )


def follow(
    jobs: Sequence[Job],
    demanded: "Demand",
    *,
    submit: Callable[[Job, Progress], None],
    finish: Callable[[Job, "Document"], None],
    begin: Callable[[], None] = lambda: None,
    advice: str = "run the same command again to continue",
) -> None:
    """Submit the jobs that have not ended, on the stack, and show their progress until `finish` has ended each.

    `begin`: called once the stack runs. `advice`: how to go on after Ctrl-C.
    """
    from contextlib import ExitStack

    from pipeline.operations.documents import watch
    from pipeline.settings import get_settings
    from pipeline.standalone.stack import using_stack

    interrupted = f"Interrupted. Nothing is lost: {advice}. `penstock documents` lists, cancels and deletes documents."
    with ExitStack() as held:
        with err.status("Starting …"):
            stack = held.enter_context(using_stack(get_settings(), demanded))
        with Progress(stack, interrupted=interrupted, patience_s=0) as progress:
            begin()
            board = Board(jobs, progress)
            waiting: dict[str, list[Job]] = {}
            for job in jobs:
                if not job.ended:
                    submit(job, progress)
                    board.show(job)
                if job.document is not None:
                    waiting.setdefault(job.document.id, []).append(job)
            for document in watch(list(waiting), idle=board.keep):
                for job in waiting[document.id]:
                    job.document = document
                    if document.settled:
                        finish(job, document)
                    board.show(job)


def _read_here(jobs: Sequence[Job], provider: str) -> str:
    """A sentence about the files that `provider` need not see, since they hold their text; empty without any."""
    from pipeline.settings import LOCAL

    texts = [job for job in jobs if job.document and job.document.holds_text]
    if not texts or provider == LOCAL:
        return ""
    which = f"{count(len(texts), 'file')} hold" if len(texts) > 1 else f"{one_line(texts[0].target.source.name)} holds"
    return f"{which} text, which this machine reads at no cost, without {provider}."


def _submit(job: Job, wish: Wish, progress: Progress) -> Wish:
    """Submit the job's file; at a terminal, ask for a password that it needs. Return the wish for the next file, with
    the password that opened this one."""
    submit(job, wish)
    if job.code not in {"encrypted", "wrong_password"} or not can_open(job.target.source):
        return wish
    with progress.paused():
        password = ask_password(job.target.source.name)
    if not password:
        return wish
    asked = replace(wish, options=replace(wish.options, password=password))
    submit(job, asked)
    return wish if job.ended else asked


def submit(job: Job, wish: Wish) -> None:
    """Submit the job's file; a refusal ends the job with its reason."""
    from pipeline.operations import documents

    job.started = time.monotonic()
    job.error, job.code, job.ended = "", "", False
    if job.origin is None:
        with suppress(OSError):  # submitting reports the fault
            job.origin = wish.origin(job.target.source, job.form, job.target.inside)
    try:
        job.document = documents.submit(job.target.source, wish.options, original=job.target.inside)
    except UserError as error:
        job.error, job.code, job.ended = worded(error), error.code, True


def finish(job: Job, document: "Document", wish: Wish) -> None:
    """End the job: write its output, unless its document has none or the target may no longer be replaced. For standard
    output, only set `job.content`.

    A failure to write ends up in `job.error`.
    """
    from pipeline.interfaces.cli.convert.judgement import Verdict, judge, judge_folders
    from pipeline.interfaces.cli.results import content_of, write
    from pipeline.reading.files.user_file import storage_error

    job.ended = True
    job.took_s = time.monotonic() - job.started
    if document.merged_path is None or document.outdated or job.status not in {"COMPLETED", "PARTIAL_FAILED"}:
        return
    try:
        if job.target.path is None:
            job.content = content_of(document, job.form, wish.shape, str(document.pictures_folder or ""))
            return
        if job.origin and not wish.force:
            judgement = judge(job.target, job.origin, keep=wish.keep)
            if judgement.verdict is not Verdict.KEPT:
                judgement = judge_folders(document, job.target.path, job.form, wish.shape)
            if judgement.verdict is Verdict.KEPT:
                job.judgement = judgement
                return
        write(document, job.target.path, job.form, job.origin, wish.shape)
        job.written = job.target.path
    except OSError as error:
        job.error = str(storage_error(error, job.target.path or Path("standard output")))
    except UserError as error:  # a user deleted the document
        job.error = str(error)
