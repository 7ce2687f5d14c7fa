"""`penstock convert`: files in, Markdown out."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.engine.errors import UserError
from pipeline.interfaces.cli.command import Format
from pipeline.interfaces.cli.output import count, err, one_line, print_json, state
from pipeline.interfaces.cli.progress import Bar, Progress

if TYPE_CHECKING:
    from pipeline.interfaces.cli.results import Target
    from tasks.documents import Document, Options

DONE, FAILED, PARTIAL = 0, 1, 3


@dataclass
class Job:
    """One input on its way to its output."""

    target: "Target"
    document: "Document | None" = None
    error: str = ""
    kept: bool = False
    ended: bool = False
    written: Path | None = None
    text: str = ""
    """What goes to standard output once the bars are gone."""
    started: float = field(default_factory=time.monotonic)
    took_s: float = 0.0

    @property
    def status(self) -> str:
        """The document's state; KEPT or REFUSED if there is no document."""
        if self.kept:
            return "KEPT"
        return self.document.status.name if self.document else "REFUSED"

    @property
    def exit_code(self) -> int:
        """0 done, 1 failed, 3 partial."""
        if self.document is None or self.error:
            return FAILED
        if self.status == "COMPLETED":
            return DONE
        return PARTIAL if self.status == "PARTIAL_FAILED" and self.document.completed_count else FAILED


def _path(text: str) -> Path:
    if not text:
        raise typer.BadParameter("a file name is empty")  # an unset "$FILE" in a script; Path("") is this folder
    return Path(text)


Inputs = Annotated[
    list[Path], typer.Argument(metavar="FILES", parser=_path, help="PDF, PNG, JPEG, WebP, TIFF; or folders.")
]
Output = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        help="File, folder (for several inputs), or - for standard output. Default: NAME.md in the current folder.",
    ),
]


def convert(
    inputs: Inputs,
    output: Output = "",
    pages: Annotated[str, typer.Option(help="Pages to convert, such as 1-5,7. Default: all.")] = "",
    provider: Annotated[str, typer.Option(help="A configured provider, or 'local' (no service).")] = "",
    model: Annotated[str, typer.Option(help="A model of the provider. Default: the provider's own.")] = "",
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="If pages fail, write the others and mark the gaps (exit code 3).")
    ] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace existing output files.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Convert again, even if the same file was converted before.")
    ] = False,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Pay for every page again: do not reuse stored answers.")
    ] = False,
    format_: Annotated[
        Format,
        typer.Option("--format", help="md: Markdown; json: blocks with their boxes; docling: a DoclingDocument."),
    ] = Format.MD,
    pictures: Annotated[
        bool,
        typer.Option("--pictures", help="Keep pictures in NAME.pictures, linked from the Markdown (local, nodes)."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON on standard output.")] = False,
) -> None:
    """Convert files to Markdown.

    [bold]penstock convert report.pdf[/bold]                       writes report.md here
    [bold]penstock convert scans/ photo.jpg -o texts/[/bold]       with every file below scans/
    [bold]penstock convert report.pdf --pages 1-3 -o - | less[/bold]

    Each result has a manifest beside it, report.manifest.json, which says where each page came from.
    With [bold]--format json[/bold] the result is report.json: the blocks of each page with their boxes.
    [bold]--format docling[/bold] writes them to report.docling.json, for programs that read Docling's format.

    Work runs on the stack of [bold]penstock up[/bold], or on one started for this command.
    PENSTOCK_DATABASE_URL and PENSTOCK_REDIS_URL name servers to use instead.
    Run the command again to continue interrupted work.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 partial, 130 interrupted.
    """
    from pipeline.interfaces.cli.results import STDOUT, plan
    from pipeline.providers import registry
    from pipeline.settings import get_settings

    settings = get_settings()
    if as_json and output == STDOUT:
        raise UserError("--json and -o - both write to standard output: choose one", code="usage")
    registry.check(settings, provider or settings.provider, model)
    jobs = [
        Job(target, kept=True, error=f"{target.path} exists and is kept: use --force to replace it")
        if target.exists and not force
        else Job(target)
        for target in plan(inputs, output, format_.suffix)
    ]
    open_jobs = [job for job in jobs if not job.kept]
    if any(_is_accepted(job) for job in open_jobs):  # else nothing need be started, which takes seconds
        from tasks.documents import Options

        options = Options(pages, provider, model, allow_partial, use_cache=not no_cache, pictures=pictures, fresh=fresh)
        _convert(open_jobs, options, format_)
    _tell(jobs, as_json=as_json)
    codes = {job.exit_code for job in open_jobs} or {FAILED}
    raise typer.Exit(FAILED if FAILED in codes else max(codes))


def _is_accepted(job: Job) -> bool:
    """Whether the file is one that can be converted; else the job has ended, and says why."""
    from pipeline.reading.source import inspect
    from pipeline.settings import get_settings

    try:
        inspect(job.target.source, get_settings().documents)
    except UserError as error:
        job.error, job.ended = str(error), True
    return not job.ended


def _tell(jobs: list[Job], *, as_json: bool) -> None:
    """Say how it ended, and write what goes to standard output."""
    if as_json:
        print_json({"documents": [_as_json(job) for job in jobs]})
        return
    for sentence in _report(jobs):
        err.print(sentence, soft_wrap=True)
    typer.echo("".join(job.text for job in jobs), nl=False)


def _convert(jobs: list[Job], options: "Options", form: Format) -> None:
    from contextlib import ExitStack

    from pipeline.settings import get_settings
    from pipeline.standalone.stack import using_stack

    again = "`penstock up` continues it" if options.fresh else "run the same command again to continue"
    interrupted = (
        f"Interrupted. Nothing is lost: {again}. `penstock documents` lists, cancels and deletes what there is."
    )
    with ExitStack() as held:
        with err.status("Starting …"):
            stack = held.enter_context(using_stack(get_settings()))
        with Progress(stack, interrupted=interrupted, patience_s=0) as progress:
            _submit(jobs, options, progress)
            _watch(jobs, progress, form)


def _submit(jobs: list[Job], options: "Options", progress: "Progress") -> None:
    from tasks.documents import submit

    for job in jobs:
        job.started = time.monotonic()
        try:
            job.document = submit(job.target.source, options)
        except UserError as error:
            job.error = str(error)
            job.ended = True
        _show(job, jobs, progress)


def _watch(jobs: list[Job], progress: "Progress", form: Format) -> None:
    """Show how the documents are doing, and write each result as soon as it is ready."""
    from pipeline.providers.gates import closed_because, queue_name
    from pipeline.storage.context import get_context
    from tasks.documents import watch

    waiting: dict[str, list[Job]] = {}
    for job in jobs:
        if job.document is not None:
            waiting.setdefault(job.document.id, []).append(job)

    def reasons() -> list[str]:
        providers = {job.document.provider for job in jobs if job.document and not job.document.settled}
        found = (closed_because(get_context(), queue_name("vision", provider)) for provider in sorted(providers))
        return [f"{why}: its pages wait and continue by themselves (`penstock queues`)." for why in found if why]

    for document in watch(list(waiting), idle=lambda: progress.keep(reasons)):
        for job in waiting[document.id]:
            job.document = document
            if document.settled:
                _finish(job, document, form)
            _show(job, jobs, progress)


def _show(job: Job, jobs: Sequence[Job], progress: "Progress") -> None:
    """Show a job's bar, and a line once it has ended. Of several files each then makes room for the next one's bar."""
    several = len(jobs) > 1
    if several:
        done = sum(other.ended for other in jobs)
        progress.show("", Bar("all files", done, len(jobs), f"{done:,}/{count(len(jobs), 'file')}"))
    if job.document is not None:
        if several and job.ended:
            progress.remove(job.document.id)
        else:
            progress.show(job.document.id, _bar(job, job.document))
    if job.ended and (job.written or several):
        progress.note(_line(job))


def _bar(job: Job, document: "Document") -> "Bar":
    failed = f", [red]{document.failed_count:,} failed[/red]" if document.failed_count else ""
    figures = f"{document.completed_count:,}/{count(document.pages, 'page')}{failed}" if document.pages else ""
    done = document.completed_count + document.failed_count
    return Bar(job.target.source.name, done, document.pages or None, figures, state(document.status.name))


def _finish(job: Job, document: "Document", form: Format) -> None:
    """Write the job's output, if its document has one."""
    from pipeline.flows.documents.files import storage_error
    from pipeline.interfaces.cli.results import text_of, write

    job.ended = True
    job.took_s = time.monotonic() - job.started
    if document.merged_path is None or job.status not in {"COMPLETED", "PARTIAL_FAILED"}:
        return
    try:
        if job.target.path is None:
            job.text = text_of(document, form, str(document.pictures_folder or ""))
            return
        write(document, job.target.path, form)
        job.written = job.target.path
    except OSError as error:
        job.error = str(storage_error(error, job.target.path or Path("standard output")))


def _line(job: Job) -> str:
    """How a job ended, as one line."""
    pages = f" [dim]({count(job.document.pages, 'page')})[/dim]" if job.document and job.document.pages else ""
    written = f" → [bold]{one_line(str(job.written))}[/bold]" if job.written else ""
    ended = f": {state(job.status)}" if not (job.written and job.status == "COMPLETED") else ""
    return f"{one_line(str(job.target.source))}{written}{ended}{pages}"


def _report(jobs: list[Job]) -> Iterable[str]:
    """The closing lines: what went wrong, what to do about it, and a summary of several files."""
    several = len(jobs) > 1
    for job in jobs:
        sentence = "" if job.kept and several else job.error or _advice(job)
        if sentence:
            where = "" if job.kept or str(job.target.source) in sentence else f"{job.target.source}: "
            yield f"[red]penstock:[/red] {one_line(where + sentence)}"
    if several:
        written = sum(job.written is not None for job in jobs)
        kept = sum(job.kept for job in jobs)
        failed = sum(job.exit_code != DONE for job in jobs if not job.kept)
        parts = [f"{written:,} written"] + ([f"[red]{failed:,} with problems[/red]"] if failed else [])
        parts += [f"{kept:,} kept, whose results exist (--force replaces them)"] if kept else []
        yield f"{count(len(jobs), 'file')}: {', '.join(parts)}."


def _advice(job: Job) -> str:
    """What to do about a document that is not COMPLETED; empty if it is."""
    document = job.document
    assert document is not None
    match document.status.name:
        case "PARTIAL_FAILED":
            how = (
                f"`penstock documents pages {document.id} --failed` says why; "
                f"`penstock documents retry {document.id} --failed` tries again"
            )
            kept = "" if document.merged_path else ", or use --allow-partial to write what there is"
            return f"{document.failed_count:,} of {document.pages:,} pages failed. {how}{kept}."
        case "FAILED":
            return document.error or "failed"
        case "CANCELLED":
            return f"cancelled; `penstock documents retry {document.id}` starts again"
        case "PAUSED":
            return f"paused; `penstock documents resume {document.id}` continues"
    return ""


def _as_json(job: Job) -> dict[str, Any]:
    document = job.document
    return {
        "input": str(job.target.source),
        "output": str(job.written) if job.written else None,
        "id": document.id if document else None,
        "status": job.status,
        "pages": document.pages if document else None,
        "completed": document.completed_count if document else None,
        "failed": document.failed_count if document else None,
        "error": job.error or (document.error if document else None),
        "seconds": round(job.took_s, 3),
    }
