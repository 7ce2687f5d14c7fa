"""`penstock convert`: files in, Markdown out."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pipeline.cli.targets import Target
    from pipeline.standalone.stack import Stack
    from tasks.documents import Document, Options

DONE, FAILED, PARTIAL = 0, 1, 3


@dataclass
class Job:
    """One input on its way to its output."""

    target: "Target"
    document: "Document | None" = None
    error: str = ""
    kept: bool = False
    written: Path | None = None
    started: float = field(default_factory=time.monotonic)
    took_s: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 done, 1 failed, 3 partial."""
        if self.document is None or self.error:
            return DONE if self.kept else FAILED
        if self.document.status.name == "COMPLETED":
            return DONE
        partial = self.document.status.name == "PARTIAL_FAILED" and self.document.completed_count
        return PARTIAL if partial else FAILED


def convert(
    inputs: Annotated[list[Path], typer.Argument(metavar="FILES…", help="PDF, PNG, JPEG, WebP, TIFF; or folders.")],
    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            help="File, folder (for several inputs), or - for standard output. Default: NAME.md in the current folder.",
        ),
    ] = "",
    pages: Annotated[str, typer.Option(help="Pages to convert, like 1-5,7. Default: all.")] = "",
    provider: Annotated[str, typer.Option(help="A configured provider, or 'local' (no service).")] = "",
    model: Annotated[str, typer.Option(help="A model of the provider. Default: the provider's own.")] = "",
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Write what there is when pages fail, gaps marked (exit code 3).")
    ] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace existing output files.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Convert anew, even if the same was converted before.")
    ] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Pay again for pages that are known.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON on standard output.")] = False,
) -> None:
    """Convert files to Markdown.

    Runs on the embedded stack (started for this command unless [bold]penstock up[/bold] runs), or on the servers
    that PENSTOCK_DATABASE_URL and PENSTOCK_REDIS_URL name. Interrupted work goes on when you run the command again.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 partial.
    """
    from pipeline.cli.output import err
    from pipeline.cli.targets import plan
    from pipeline.providers import registry
    from pipeline.settings import get_settings
    from pipeline.standalone.stack import using_stack

    settings = get_settings()
    registry.check(settings, provider or settings.provider, model)
    jobs = [Job(target) for target in plan(inputs, output)]
    for job in jobs:
        if job.target.exists and not force:
            job.kept, job.error = True, f"{job.target.path} exists and is kept: use --force to replace it"
    open_jobs = [job for job in jobs if not job.kept]
    if open_jobs:
        from tasks.documents import Options

        options = Options(pages, provider, model, allow_partial, use_cache=not no_cache, fresh=fresh)
        with using_stack(settings) as stack:
            _run(open_jobs, options, stack)
    elif not as_json:
        err.print(f"penstock: {jobs[0].error}" if len(jobs) == 1 else "penstock: all results exist: use --force")
    _report(jobs, as_json=as_json)
    codes = {job.exit_code for job in open_jobs} or {FAILED}
    raise typer.Exit(FAILED if FAILED in codes else max(codes))


def _run(jobs: list[Job], options: "Options", stack: "Stack") -> None:
    from pipeline.cli.progress import Progress
    from pipeline.engine.errors import UserError
    from tasks.documents import submit, watch

    with Progress(total=len(jobs)) as progress:
        for job in jobs:
            job.started = time.monotonic()
            try:
                job.document = submit(job.target.source, options)
            except UserError as error:
                job.error = str(error)
                progress.failed(job.target.source.name, job.error)
            else:
                progress.show(job.target.source.name, job.document)
        waiting: dict[str, list[Job]] = {}
        for job in jobs:
            if job.document is not None:
                waiting.setdefault(job.document.id, []).append(job)
        try:
            for document in watch(list(waiting), idle=stack.ensure):
                for job in waiting[document.id]:
                    job.document = document
                    progress.show(job.target.source.name, document)
                    if document.settled:
                        _finish(job, document)
        except KeyboardInterrupt:
            progress.note(
                "Interrupted. Nothing is lost: run the same command again to go on, or "
                "`penstock documents list` to see what there is."
            )
            raise


def _finish(job: Job, document: "Document") -> None:
    """Write the job's output, if its document has one."""
    from pipeline.documents.files import manifest_path, storage_error, write_text

    job.took_s = time.monotonic() - job.started
    if document.merged_path is None or document.status.name not in {"COMPLETED", "PARTIAL_FAILED"}:
        return
    try:
        text = document.read_text()
        if job.target.path is None:
            typer.echo(text, nl=False)
            return
        write_text(job.target.path, text)
        assert document.manifest_path is not None
        write_text(manifest_path(job.target.path), document.manifest_path.read_text(encoding="utf-8"))
        job.written = job.target.path
    except OSError as error:
        job.error = str(storage_error(error, job.target.path or Path("standard output")))


def _report(jobs: list[Job], *, as_json: bool) -> None:
    from pipeline.cli.output import err, print_json

    if as_json:
        print_json({"documents": [_as_json(job) for job in jobs]})
        return
    for job in jobs:
        if job.written:
            err.print(f"{job.target.source} → [bold]{job.written}[/bold]", soft_wrap=True)
        sentence = _problem(job)
        if sentence and not job.kept:
            err.print(f"[red]penstock:[/red] {sentence}", markup=True, soft_wrap=True)
        elif job.kept and len(jobs) > 1:
            err.print(f"[dim]{job.target.path} exists: kept[/dim]", soft_wrap=True)


def _problem(job: Job) -> str:
    from rich.markup import escape

    if job.error or job.document is None:
        return escape(job.error)
    document = job.document
    match document.status.name:
        case "PARTIAL_FAILED":
            how = (
                f"`penstock documents pages {document.id} --failed` says why; "
                f"`penstock documents retry {document.id} --failed` tries again"
            )
            kept = "" if document.merged_path else ", or use --allow-partial to write what there is"
            return escape(
                f"{job.target.source}: {document.failed_count} of {document.pages} pages failed. {how}{kept}."
            )
        case "FAILED":
            return escape(f"{job.target.source}: {document.error}")
        case "CANCELLED":
            return escape(f"{job.target.source}: cancelled")
        case "PAUSED":
            return escape(f"{job.target.source}: paused; `penstock documents resume {document.id}` goes on")
    return ""


def _as_json(job: Job) -> dict[str, Any]:
    document = job.document
    entry: dict[str, Any] = {"input": str(job.target.source), "output": str(job.written) if job.written else None}
    entry |= {"id": None, "status": "KEPT" if job.kept else "REFUSED", "error": job.error or None}
    if document is not None:
        entry |= {
            "id": document.id, "status": document.status.name, "pages": document.pages,
            "completed": document.completed_count, "failed": document.failed_count,
            "error": job.error or document.error, "seconds": round(job.took_s, 3),
        }  # fmt: skip
    return entry
