"""`penstock convert`: files in, Markdown out."""

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.engine.errors import UserError
from pipeline.interfaces.cli.command import AsFormat, Format, all_settings
from pipeline.interfaces.cli.convert import options as given
from pipeline.interfaces.cli.convert.job import FAILED, Job, line, orphaned, passed_over, report
from pipeline.interfaces.cli.convert.job import as_json as job_json
from pipeline.interfaces.cli.convert.run import run
from pipeline.interfaces.cli.output import err, print_json, print_text

if TYPE_CHECKING:
    from pipeline.standalone.demand import Demand

_STDIN = Path("-")
"""The marker for standard input. A file of this name is another path, `./-`."""


def _path(text: str) -> Path:
    if not text:
        raise typer.BadParameter("a file name is empty")  # an unset "$FILE" in a script; Path("") is this folder
    return _STDIN if text == "-" else Path(text)


Inputs = Annotated[
    list[Path],
    typer.Argument(metavar="FILES", parser=_path, help="PDF, PNG, JPEG, WebP, TIFF; folders; or - for standard input."),
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
    pages: given.Pages = "",
    provider: given.Provider = "",
    model: given.Model = "",
    allow_partial: given.AllowPartial = False,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace results, whatever was done to them since.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Replace no result; say which are older than their sources.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Convert again, even if the same file was converted before.")
    ] = False,
    no_cache: given.NoCache = False,
    format_: AsFormat = Format.MD,
    pictures: given.Pictures = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON on standard output.")] = False,
) -> None:
    """Convert files to Markdown.

    [bold]penstock convert report.pdf[/bold]                       writes report.md here
    [bold]penstock convert scans/ photo.jpg -o texts/[/bold]       with every file below scans/
    [bold]penstock convert report.pdf --pages 1-3 -o - | less[/bold]
    [bold]curl https://example.com/a.pdf | penstock convert -[/bold]    from standard input, to standard output

    Each result has a manifest beside it, report.manifest.json, which says what it was made of. So the command can be
    run again: what is new or has changed is converted, what is up to date or was edited stays as it is.
    With [bold]--format json[/bold] the result is report.json: the blocks of each page with their boxes.
    [bold]--format docling[/bold] writes them to report.docling.json, for programs that read Docling's format.

    Work runs on the stack of [bold]penstock up[/bold], or on one started for this command.
    PENSTOCK_DATABASE_URL and PENSTOCK_REDIS_URL name servers to use instead.
    Run the command again to continue interrupted work.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 partial, 130 interrupted.
    """
    from pipeline.interfaces.cli.convert.targets import plan

    if force and keep:
        raise UserError("--force replaces results, and --keep does not: choose one", code="usage")
    output = _output(inputs, output, as_json=as_json)
    all_settings()

    def wish() -> given.Wish:
        from pipeline.flows.documents.submission import Options

        options = Options(pages, provider, model, allow_partial, not no_cache, pictures, fresh=fresh)
        return given.Wish(options, format_, force, keep)

    wanted = wish() if provider or model or pages else None
    with _received(inputs) as sources:
        jobs = [Job(target) for target in plan(sources, output, format_.suffix)]
        # Unless an option may be wrong, the stack starts while this command imports its own modules.
        starts = wanted is None and _has_news(jobs, force=force)
        with _demand() if starts else nullcontext() as demanded:
            left_out = _convert(jobs, sources, output, wanted or wish(), demanded)
    _tell(jobs, left_out, as_json=as_json)
    codes = {job.exit_code for job in jobs}
    raise typer.Exit(FAILED if FAILED in codes else max(codes))


def _output(inputs: Sequence[Path], output: str, *, as_json: bool) -> str:
    """Where results go: those of standard input to standard output. Raises `UserError` if the report goes there."""
    from pipeline.interfaces.cli.convert.targets import STDOUT

    if as_json and output == STDOUT:
        raise UserError("--json and -o - both write to standard output: choose one", code="usage")
    if all(path is not _STDIN for path in inputs):
        return output
    if as_json and not output:
        raise UserError("--json and - both write to standard output: name a file with -o", code="usage")
    return output or STDOUT


def _convert(
    jobs: Sequence[Job], sources: Sequence[Path], output: str, wish: given.Wish, demanded: "Demand | None"
) -> list[Path]:
    """Bring these jobs to their end; the files that are none."""
    from pipeline.reading.files.inputs import other_files

    left_out = other_files(sources)
    if left_out:
        err.print(passed_over(left_out), soft_wrap=True)
    if orphans := _without_source(sources, jobs, output):
        err.print(orphaned(orphans), soft_wrap=True)
    for job in jobs:
        _look(job, wish, several=len(jobs) > 1)
    wanted = [job for job in jobs if job.is_wanted]
    if any(map(_begins_well, wanted)):
        with nullcontext(demanded) if demanded else _demand() as held:  # a stack starts while the files are read
            with err.status("Starting …"):
                accepted = any(_is_accepted(job, several=len(jobs) > 1) for job in wanted)
            if accepted:
                run(wanted, wish, held)
    else:
        for job in wanted:
            _is_accepted(job, several=len(jobs) > 1)
    return left_out


@contextmanager
def _received(inputs: Sequence[Path]) -> Iterator[list[Path]]:
    """The inputs, with `-` replaced by a temporary copy of standard input."""
    if all(path is not _STDIN for path in inputs):
        yield list(inputs)
        return
    if sys.stdin.isatty():
        raise UserError("- is standard input, and nothing is piped into it: name a file", code="usage")
    with tempfile.TemporaryDirectory(prefix="penstock-stdin-") as folder:
        file = Path(folder) / "stdin"
        with file.open("wb") as copy:
            shutil.copyfileobj(sys.stdin.buffer, copy)
        yield [file if path is _STDIN else path for path in inputs]


def _without_source(inputs: Sequence[Path], jobs: Sequence[Job], output: str) -> list[Path]:
    """The results of these folders whose source files no longer exist."""
    from pipeline.interfaces.cli.results import sourceless

    folders = [path for path in inputs if path.is_dir()]
    # Without -o, results lie in the current folder, which may be a large home folder: do not search it.
    if not output or not folders:
        return []
    return sourceless(Path(output), folders, [job.target.path for job in jobs if job.target.path])


@contextmanager
def _demand() -> Iterator["Demand"]:
    """Have the stack and a process that reads start while this command imports the rest."""
    from pipeline.standalone.demand import demand

    with demand(all_settings()) as demanded:
        with err.status("Starting …"):
            from pipeline.reading.sandbox import child

            child.prepare()
            from tasks import documents  # noqa: F401  # what takes longest
        yield demanded


def _has_news(jobs: Sequence[Job], *, force: bool) -> bool:
    """Whether a file is to be converted, whatever the results that exist are made of."""
    return any(force or not job.target.exists for job in jobs if _begins_well(job))


def _begins_well(job: Job) -> bool:
    """Whether size and first bytes are those of a file that Penstock converts."""
    from pipeline.reading.files.source import check_file
    from pipeline.settings import get_settings

    try:
        check_file(job.target.source, get_settings().documents, job.target.source.name)
    except UserError:
        return False
    return True


def _look(job: Job, wish: given.Wish, *, several: bool) -> None:
    """See what there is already, unless it is to be replaced anyway; of several, say at once why one is kept."""
    from pipeline.interfaces.cli.convert.judgement import judge

    if job.target.exists and not wish.force:
        try:
            job.origin = wish.origin(job.target.source)
        except OSError:
            return  # what cannot be read is refused with its reason
        job.judgement = judge(job.target, job.origin, keep=wish.keep, again=wish.again)
        if not job.is_wanted and job.problem and several:
            err.print(line(job), soft_wrap=True)


def _is_accepted(job: Job, *, several: bool) -> bool:
    """Whether the file is one that can be converted; else the job has ended, and says why."""
    from pipeline.reading.pdf.inspection import inspect
    from pipeline.settings import get_settings

    try:
        inspect(job.target.source, job.target.source.name, get_settings().documents)
    except UserError as error:
        job.error, job.ended = str(error), True
        if several:
            err.print(line(job), soft_wrap=True)
    return not job.ended


def _tell(jobs: Sequence[Job], left_out: Sequence[Path], *, as_json: bool) -> None:
    """Say how it ended, and write what goes to standard output."""
    if as_json:
        print_json({"documents": [job_json(job) for job in jobs], "left_out": [str(path) for path in left_out]})
        return
    for sentence in report(jobs):
        err.print(sentence, soft_wrap=True)
    print_text("".join(job.text for job in jobs))
