"""`penstock convert`: files in, Markdown out."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.engine.errors import UserError
from pipeline.interfaces.cli.command import Format
from pipeline.interfaces.cli.convert.job import FAILED, Job, report
from pipeline.interfaces.cli.convert.job import as_json as job_json
from pipeline.interfaces.cli.convert.run import run
from pipeline.interfaces.cli.output import err, print_json


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
    from pipeline.interfaces.cli.convert.targets import STDOUT, plan
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
        run(open_jobs, options, format_)
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
        print_json({"documents": [job_json(job) for job in jobs]})
        return
    for sentence in report(jobs):
        err.print(sentence, soft_wrap=True)
    typer.echo("".join(job.text for job in jobs), nl=False)
