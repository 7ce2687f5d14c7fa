"""`penstock watch`: converts the files of a folder as they arrive, until Ctrl-C.

The command keeps no state: the manifests beside the results record finished work, the database work under way.
"""

import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from pipeline.engine.nouns import count
from pipeline.interfaces.cli.command import AsFormats, NoMarkers
from pipeline.interfaces.cli.convert import options as given
from pipeline.interfaces.cli.convert.board import closed, reasons
from pipeline.interfaces.cli.convert.job import Job, line, passed_over
from pipeline.interfaces.cli.convert.judgement import Verdict, judge
from pipeline.interfaces.cli.convert.run import finish, submit
from pipeline.interfaces.cli.output import err, one_line
from pipeline.interfaces.cli.progress import Bar, Progress
from pipeline.reading.export.formats import Format

LOOK_EVERY_S = 1.0


def watch(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to watch, with the folders in it.")],
    output: Annotated[str, typer.Option("-o", "--output", metavar="OUT", help="The folder for the results.")],
    pages: given.Pages = "",
    provider: given.Provider = "",
    model: given.Model = "",
    allow_partial: given.AllowPartial = False,
    format_: AsFormats = None,
    split: given.Split = "",
    tables: given.Tables = "",
    no_page_markers: NoMarkers = False,
    pictures: given.Pictures = False,
    escalate: given.Escalate = "",
    budget: given.Budget = "",
) -> None:
    """Convert every file in a folder, and those that appear there, until Ctrl-C.

    [bold]penstock watch inbox/ -o texts/[/bold]

    The command takes a file once it is complete, and again when it changes. It names and keeps results as
    `penstock convert` does: results that are up to date or that you edited stay. Start it again after Ctrl-C or a
    crash, and it continues with new files and with work under way.

    Work runs on the stack of `penstock up`, or on one that this command starts and ends.
    """
    from threading import Event

    from pipeline.flows.documents.submission import Options
    from pipeline.interfaces.cli.convert.targets import check_folder
    from pipeline.reading.files.filetype import is_temporary
    from pipeline.reading.files.inputs import is_input_below, is_other_below, other_files
    from pipeline.reading.files.watcher import poll
    from pipeline.settings import get_settings
    from pipeline.standalone.stack import using_stack

    check_folder(output)
    shape = given.shape_of(split, tables, markers=not no_page_markers)
    options = Options(pages, provider, model, allow_partial, pictures=pictures, escalate=escalate, budget=budget)
    wish = given.Wish(options, shape)
    root = folder.resolve()

    def concerns(path: Path) -> bool:
        return not is_temporary(path) and (is_input_below(path, root) or is_other_below(path, root))

    batches = poll(root, concerns, Event(), existing=True, below=True)
    with using_stack(get_settings()) as stack:
        ended = "\nEnded. The same command, or `penstock up`, continues work under way."
        err.print(f"Watching {one_line(str(folder))} for files to convert. Ctrl-C ends it.", soft_wrap=True)
        left_out = other_files([folder])
        if left_out:
            err.print(passed_over(left_out), soft_wrap=True)
        inbox = None
        try:
            with Progress(stack, interrupted=ended, patience_s=0) as progress:
                inbox = Inbox(folder, Path(output), wish, given.forms_of(format_), progress, left_out)
                for paths in batches:
                    inbox.turn(folder / path.relative_to(root) for path in paths if concerns(path))
        except KeyboardInterrupt:
            pass
        finally:
            if inbox is not None:
                err.print(inbox.summary, soft_wrap=True)


class Inbox:
    """The files of a watched folder, from their arrival to their results."""

    def __init__(
        self,
        folder: Path,
        output: Path,
        wish: given.Wish,
        forms: Sequence[Format],
        progress: Progress,
        left_out: Iterable[Path] = (),
    ) -> None:
        self._forms = forms
        self._folder = folder
        self._output = output
        self._wish = wish
        self._progress = progress
        self._left_out = set(left_out)
        """Files of other types that the command has named."""
        self._arrived: deque[Path] = deque()
        self._open: dict[Path, Job] = {}
        """Submitted jobs without a written result, by result. Failed ones stay, since a user may retry them."""
        self._shown: dict[Path, str] = {}
        self._counts: Counter[str] = Counter()
        self._looked_at = float("-inf")

    @property
    def summary(self) -> str:
        """The outcome of the files so far, in words."""
        names = ("written", "up to date", "kept", "refused")
        parts = [f"{self._counts[name]:,} {name}" for name in names if self._counts[name] or name == "written"]
        parts += [f"{len(self._open):,} without a result yet"] if self._open else []
        return f"{', '.join(parts)}."

    def turn(self, arrived: Iterable[Path]) -> None:
        """Submit arrived files that need converting, for about a second at most: the others follow in the next turn.
        Once a second, write finished results. Name each file of another type once."""
        from pipeline.reading.files.inputs import is_input_name

        files = list(arrived)
        self._arrived.extend(path for path in files if is_input_name(path))
        if others := [path for path in files if not is_input_name(path) and path not in self._left_out]:
            self._left_out.update(others)
            self._progress.note(passed_over(others))
        until = time.monotonic() + LOOK_EVERY_S
        while self._arrived and time.monotonic() < until:
            source = self._arrived.popleft()
            for form in self._forms:
                self._take(source, form)
        if time.monotonic() - self._looked_at >= LOOK_EVERY_S:
            self._check_inbox()
            self._looked_at = time.monotonic()

    def _take(self, source: Path, form: Format) -> None:
        from pipeline.interfaces.cli.convert.targets import Target, target_path

        below = source.parent.relative_to(self._folder)
        path = target_path(self._output, below, source, form.suffix)
        job = Job(Target(source, path), form)
        other = self._open.get(path)
        try:
            job.origin = self._wish.origin(source, form)
            job.judgement = judge(job.target, job.origin)
        except PermissionError as error:
            job.error = f"no permission: {error.filename}"
        except OSError:
            return  # deleted since it arrived
        if other is not None and other.target.source != source:
            job.error = f"{other.target.source} has the same result, {path}: rename one of them"
        elif job.is_wanted and not job.error:
            submit(job, self._wish)
        if job.is_wanted and not job.error:
            self._open[path] = job
            self._shown.pop(path, None)
            return
        outcome = {Verdict.UP_TO_DATE: "up to date", Verdict.KEPT: "kept"}.get(job.judgement.verdict, "refused")
        self._counts[outcome] += 1
        if outcome != "up to date":
            self._progress.note(line(job))

    def _check_inbox(self) -> None:
        """Write finished results, print new failures, and restart a dead stack."""
        from pipeline.operations.documents import several

        ids = {job.document.id for job in self._open.values() if job.document}
        known = {document.id: document for document in several(ids)}
        for path, job in list(self._open.items()):
            document = known.get(job.document.id) if job.document else None
            if document is None:
                job.error, job.document = "a user deleted its document", None
            else:
                job.error, job.document = "", document
                if document.settled:
                    finish(job, document, self._wish)
            message = job.error or (job.status if job.ended and document and document.settled else "")
            if message and self._shown.get(path) != message:
                self._shown[path] = message
                self._progress.note(line(job))
            if job.written or document is None or not job.is_wanted:
                del self._open[path]
                self._shown.pop(path, None)
                self._counts["written" if job.written else "kept" if not job.is_wanted else "refused"] += 1
        self._show()

    def _show(self) -> None:
        """Show the progress of work under way, if there is any; restart a dead stack, and say why work waits."""
        moving = [job.document for job in self._open.values() if job.document and not job.document.settled]
        if moving:
            done = sum(document.completed_count + document.failed_count for document in moving)
            pages = sum(document.pages for document in moving)
            figures = f"{count(len(moving) + len(self._arrived), 'file')}"
            figures += f", {done:,}/{count(pages, 'page')}" if pages else ""
            self._progress.show("", Bar("under way", done, pages or None, figures))
        else:
            self._progress.remove("")
        self._progress.keep(lambda: reasons(closed({document.provider for document in moving})))
