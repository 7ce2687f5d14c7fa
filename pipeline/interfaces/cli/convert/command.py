"""`penstock convert`: files in, Markdown out."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.engine.errors import UserError
from pipeline.interfaces.cli.command import AsFormats, NoMarkers, all_settings
from pipeline.interfaces.cli.convert import options as given
from pipeline.interfaces.cli.convert.job import FAILED, Job, line, not_unpacked, orphaned, passed_over, report
from pipeline.interfaces.cli.convert.job import as_json as job_json
from pipeline.interfaces.cli.convert.run import run
from pipeline.interfaces.cli.output import err, print_content, print_json
from pipeline.reading.export.formats import Format

if TYPE_CHECKING:
    from pipeline.reading.text.zip_archive import Entry
    from pipeline.standalone.demand import Demand

_STDIN = Path("-")
"""The argument for standard input. `./-` names a file of this name."""


def _path(text: str) -> Path:
    if not text:
        raise typer.BadParameter("a file name is empty")  # an unset "$FILE" in a script; Path("") is this folder
    return _STDIN if text == "-" else Path(text)


Inputs = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILES",
        parser=_path,
        help="PDFs, pictures, office and text files; folders and ZIPs of them; - for standard input.",
    ),
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
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace results, edited ones included.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Replace no result; name those that are older than their sources.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Convert again, even if Penstock has converted the same file before.")
    ] = False,
    no_cache: given.NoCache = False,
    format_: AsFormats = None,
    split: given.Split = "",
    tables: given.Tables = "",
    no_page_markers: NoMarkers = False,
    pictures: given.Pictures = False,
    password: Annotated[bool, typer.Option("--password", help="Ask for the password of encrypted PDFs.")] = False,
    password_file: Annotated[
        str, typer.Option(metavar="FILE", help="Read that password from a file's first line, or - for standard input.")
    ] = "",
    escalate: given.Escalate = "",
    budget: given.Budget = "",
    as_json: Annotated[bool, typer.Option("--json", help="Report as JSON on standard output.")] = False,
) -> None:
    """Convert files to Markdown.

    [bold]penstock convert report.pdf[/bold]                       writes report.md here
    [bold]penstock convert scans/ photo.jpg -o texts/[/bold]       with every file below scans/
    [bold]penstock convert report.pdf --pages 1-3 -o - | less[/bold]
    [bold]curl https://example.com/a.pdf | penstock convert -[/bold]    from standard input, to standard output

    A manifest beside each result, report.manifest.json, records its source and options. So you can run the command
    again: it converts new and changed files, and keeps results that are up to date or that you edited.
    [bold]--format md,json,pdf[/bold] writes report.md, report.json (the blocks of each page with their boxes) and
    report.searchable.pdf: the file itself, whose scanned pages you can search and select.

    At a terminal, the command asks for the password of an encrypted PDF. Penstock stores a copy that needs none, and
    forgets the password.

    [bold]--escalate openai --budget 2.00[/bold] sends the pages that local conversion doubts to a model, for at most
    2.00 a file; [bold]--budget 20p[/bold] for at most 20 pages. The better text of each page is kept.

    Work runs on the stack of [bold]penstock up[/bold], or on one that this command starts.
    PENSTOCK_DATABASE_URL and PENSTOCK_REDIS_URL name servers to use instead.
    Run the command again to continue interrupted work.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 partial, 130 interrupted.
    """
    from pipeline.interfaces.cli.convert.targets import plan

    if force and keep:
        raise UserError("--force replaces results, and --keep does not: choose one", code="usage")
    forms, shape = given.forms_of(format_), given.shape_of(split, tables, markers=not no_page_markers)
    output = _output(inputs, output, forms, as_json=as_json)
    all_settings()
    opens = given.read_password(ask=password, file=password_file, stdin_is_taken=_STDIN in inputs)

    def wish() -> given.Wish:
        from pipeline.flows.documents.submission import Options

        options = Options(
            pages,
            provider,
            model,
            allow_partial,
            not no_cache,
            pictures,
            fresh=fresh,
            escalate=escalate,
            budget=budget,
            password=opens,
        )
        return given.Wish(options, shape, force, keep)

    wanted = wish() if provider or model or pages or escalate or budget else None
    with _received(inputs) as sources, _unpacked(sources) as archives:
        targets = [plan(sources, output, form.suffix, archives) for form in forms]
        # A file's formats follow one another, so that its lines do.
        jobs = [
            Job(target, form) for same in zip(*targets, strict=True) for target, form in zip(same, forms, strict=True)
        ]
        # If no option can be wrong, start the stack while this command imports its modules.
        starts = wanted is None and _has_news(jobs, force=force)
        with stack_on_demand() if starts else nullcontext() as demanded:
            left_out = _convert(jobs, sources, output, wanted or wish(), demanded)
    _print_result(jobs, left_out, _refused(archives), as_json=as_json)
    codes = {job.exit_code for job in jobs}
    raise typer.Exit(FAILED if FAILED in codes else max(codes))


def _output(inputs: Sequence[Path], output: str, forms: Sequence[Format], *, as_json: bool) -> str:
    """Return `output`; if it is empty and an input is standard input, `-` for standard output. Raises `UserError` if
    the JSON report would go to standard output too, or if several formats have one output."""
    from pipeline.interfaces.cli.convert.targets import STDOUT

    if as_json and output == STDOUT:
        raise UserError("--json and -o - both write to standard output: choose one", code="usage")
    if len(forms) > 1 and output and not output.endswith(os.sep) and (output == STDOUT or not Path(output).is_dir()):
        raise UserError(f"several formats need a folder: -o {'FOLDER' if output == STDOUT else output}/", code="usage")
    if all(path is not _STDIN for path in inputs):
        return output
    if len(forms) > 1 and not output:
        raise UserError("several formats of standard input need a folder: name one with -o", code="usage")
    if as_json and not output:
        raise UserError("--json and - both write to standard output: name a file with -o", code="usage")
    return output or STDOUT


def _convert(
    jobs: Sequence[Job], sources: Sequence[Path], output: str, wish: given.Wish, demanded: "Demand | None"
) -> list[Path]:
    """Convert the files of these jobs, and record in each job how it ended; return the files of other types, which it
    left out."""
    from pipeline.reading.files.inputs import other_files

    left_out = other_files(sources)
    if left_out:
        err.print(passed_over(left_out), soft_wrap=True)
    if orphans := _without_source(sources, jobs, output):
        err.print(orphaned(orphans), soft_wrap=True)
    for job in jobs:
        _judge_existing(job, wish, several=len(jobs) > 1)
        if job.is_wanted and job.form is Format.PDF:
            _refuse_text(job, several=len(jobs) > 1)
    wanted = [job for job in jobs if job.is_wanted and not job.ended]
    if any(map(_begins_well, wanted)):
        with (
            nullcontext(demanded) if demanded else stack_on_demand() as held
        ):  # a stack starts while the files are read
            with err.status("Starting …"):
                accepted = any(_is_accepted(job, wish, several=len(jobs) > 1) for job in wanted)
            if accepted:
                run(wanted, wish, held)
    else:
        for job in wanted:
            _is_accepted(job, wish, several=len(jobs) > 1)
    return left_out


@contextmanager
def _received(inputs: Sequence[Path]) -> Iterator[list[Path]]:
    """Yield the inputs, with a temporary copy of standard input for `-`. Raises `UserError` if that is a terminal."""
    if all(path is not _STDIN for path in inputs):
        yield list(inputs)
        return
    if sys.stdin.isatty():
        raise UserError("- means standard input, but this is a terminal: pipe a file in, or name one", code="usage")
    with tempfile.TemporaryDirectory(prefix="penstock-stdin-") as folder:
        file = Path(folder) / "stdin"
        with file.open("wb") as copy:
            shutil.copyfileobj(sys.stdin.buffer, copy)
        yield [file if path is _STDIN else path for path in inputs]


@contextmanager
def _unpacked(sources: Sequence[Path]) -> Iterator[dict[Path, list["Entry"]]]:
    """Yield the files of those sources that are archives, unpacked to a temporary folder; print which of them are left
    out. An archive that cannot be unpacked is missing: like any file, it is refused later. Raises `UserError` if
    archives hold nothing to convert."""
    from pipeline.reading.text.zip_archive import may_be_archive, unpacked
    from pipeline.settings import get_settings

    archives: dict[Path, list[Entry]] = {}
    with ExitStack() as held:
        for path in filter(may_be_archive, sources):
            with suppress(UserError), err.status("Unpacking …"):
                entries = held.enter_context(unpacked(path, path.name, get_settings().documents))
                if entries is not None:
                    archives[path] = entries
        for sentence in not_unpacked(_refused(archives)):
            err.print(sentence, soft_wrap=True)
        if archives and len(archives) == len(sources) and not any(entry.path for entry in chain(*archives.values())):
            raise UserError(f"{', '.join(map(str, archives))} has no file to convert", code="no_inputs")
        yield archives


def _refused(archives: Mapping[Path, Sequence["Entry"]]) -> dict[Path, str]:
    return {path / entry.name: entry.reason for path, entries in archives.items() for entry in entries if entry.reason}


def _without_source(inputs: Sequence[Path], jobs: Sequence[Job], output: str) -> list[Path]:
    """The results in and below the folder `output` whose source files, in the folders among `inputs`, no longer exist.
    Empty without `-o` or folders."""
    from pipeline.interfaces.cli.results import sourceless

    folders = [path for path in inputs if path.is_dir()]
    # Without -o, results are in the current folder, which may be a large home folder: do not search it.
    if not output or not folders:
        return []
    return sourceless(Path(output), folders, [job.target.path for job in jobs if job.target.path])


@contextmanager
def stack_on_demand() -> Iterator["Demand"]:
    """Start the stack unless it runs, import the modules of the conversion in the meantime, and keep the stack up
    during the block. Does not wait until the stack is ready."""
    from pipeline.standalone.demand import demand

    with demand(all_settings()) as demanded:
        with err.status("Starting …"):
            from pipeline.reading.sandbox import child

            child.prepare()
            from tasks import documents  # noqa: F401  # what takes longest
        yield demanded


def _has_news(jobs: Sequence[Job], *, force: bool) -> bool:
    """Whether some file, by its size and first bytes one that Penstock converts, has no result yet or `force` replaces
    any. A later check may still refuse it."""
    return any(force or not job.target.exists for job in jobs if _begins_well(job))


def _begins_well(job: Job) -> bool:
    """Whether Penstock converts files of this size and these first bytes."""
    from pipeline.reading.files.source import check_file
    from pipeline.settings import get_settings

    try:
        check_file(job.target.source, get_settings().documents, job.target.source.name)
    except UserError:
        return False
    return True


def _judge_existing(job: Job, wish: given.Wish, *, several: bool) -> None:
    """Set the job's judgement of its existing result, unless `--force` replaces any or the source cannot be read. Of
    several jobs, print at once why a result is kept."""
    from pipeline.interfaces.cli.convert.judgement import judge

    if job.target.exists and not wish.force:
        try:
            job.origin = wish.origin(job.target.source, job.form, job.target.inside)
        except OSError:
            return  # the job then reports why the file cannot be read
        job.judgement = judge(job.target, job.origin, keep=wish.keep, redo=wish.redo)
        if not job.is_wanted and job.problem and several:
            err.print(line(job), soft_wrap=True)


def _refuse_text(job: Job, *, several: bool) -> None:
    """End a job for the searchable PDF of a file that is neither PDF nor picture, before it is converted."""
    from pipeline.reading.files.filetype import detect, read_head

    try:
        head = read_head(job.target.source)
    except OSError:
        return  # the job then reports why the file cannot be read
    if head and detect(head) is None:
        job.error = f"{job.target.label} is neither a PDF nor a picture, so it has no searchable PDF"
        job.code, job.ended = "no_pages", True
        if several:
            err.print(line(job), soft_wrap=True)


def _is_accepted(job: Job, wish: given.Wish, *, several: bool) -> bool:
    """Whether a check of the whole file passes, or a password may open it; if not, also for want of a child process,
    end the job with the reason, and of several jobs print it."""
    from pipeline.reading.text.units import inspect
    from pipeline.settings import get_settings

    try:
        inspect(job.target.source, job.target.source.name, get_settings().documents)
    except UserError as error:
        if error.code == "encrypted" and (wish.options.password or given.can_open(job.target.source)):
            return True
        job.error, job.ended = given.worded(error), True
        if several:
            err.print(line(job), soft_wrap=True)
    return not job.ended


def _print_result(jobs: Sequence[Job], left_out: Sequence[Path], refused: Mapping[Path, str], *, as_json: bool) -> None:
    """Report how the jobs ended, and print the results that go to standard output."""
    if as_json:
        names, reasons = [*map(str, [*left_out, *refused])], {str(path): why for path, why in refused.items()}
        print_json({"documents": [job_json(job) for job in jobs], "left_out": names, "reasons": reasons})
        return
    for sentence in report(jobs):
        err.print(sentence, soft_wrap=True)
    for job in jobs:
        print_content(job.content, binary=job.form is Format.PDF)
