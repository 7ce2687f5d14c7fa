"""`penstock compare`: a few pages of a file by several providers, side by side."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.engine.errors import UserError
from pipeline.interfaces.cli.command import Json, all_settings
from pipeline.interfaces.cli.convert.command import stack_on_demand
from pipeline.interfaces.cli.convert.job import DONE, FAILED, PARTIAL, Job
from pipeline.interfaces.cli.output import err, one_line, print_json

if TYPE_CHECKING:
    from pipeline.flows.documents.rules.difference import Difference
    from pipeline.interfaces.cli.compare.figures import Candidate
    from pipeline.interfaces.cli.progress import Progress
    from pipeline.operations.documents import Document
    from pipeline.settings import Settings
    from pipeline.standalone.demand import Demand

MAX_PROVIDERS, MAX_PAGES = 8, 50
_SAMPLE, _WIDTH = 3, 900


def compare(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `penstock convert` takes.")],
    providers: Annotated[
        str,
        typer.Option(help="Providers to compare, such as local,openai,openai:gpt-5-mini. The first is the measure."),
    ],
    pages: Annotated[
        str, typer.Option(help="How many pages, spread over the file; or which: 1,5,9 or 2-4 (7-7 for page 7).")
    ] = str(_SAMPLE),
    output: Annotated[str, typer.Option("-o", "--output", help="Write the comparison to this HTML file.")] = "",
    as_json: Json = False,
) -> None:
    """Convert a few pages of a file with several providers or models, and show the results side by side.

    [bold]penstock compare pile.pdf --providers local,openai[/bold]                    three pages
    [bold]penstock compare pile.pdf --providers lighton,qwen,openai:gpt-5-mini --pages 1,5,9 -o compare.html[/bold]

    It shows the texts with their differences from the first provider's, and time, tokens, cost and doubts; a table
    extrapolates them to the whole file. Doubtful pages of earlier conversions come first.
    Each provider gets a document of its own, so that limits and spend caps hold, and a repeated comparison costs
    nothing.

    Exit codes: 0 all providers converted all pages, 1 none converted any, 2 wrong usage, 3 some failed.
    """
    from pipeline.interfaces.cli.compare import figures, html, report
    from pipeline.operations import documents
    from pipeline.reading.files.source import check_file, safe_filename
    from pipeline.reading.files.user_file import storage_error, write_text
    from pipeline.reading.text.units import inspect

    settings = all_settings()
    names = _names(providers)
    count = _count(pages)
    if output and not Path(output).parent.is_dir():
        raise UserError(f"there is no folder {Path(output).parent}: choose another place with -o", code="output")
    check_file(file, settings.documents)
    with stack_on_demand() as demanded:
        info = inspect(file, safe_filename(file.name), settings.documents)
        numbers = _numbers(pages, info.pages) if count is None else []
        if count is not None:
            doubtful = documents.doubtful_pages(safe_filename(file.name), info.size_bytes)
            numbers = figures.sample(info.pages, count, frozenset(doubtful))
        candidates = [_result(settings, job) for job in _converted(file, names, numbers, demanded)]
        found = figures.differences(candidates)
        candidates = [_with_shares(candidate, found) for candidate in candidates]
        if as_json:
            print_json(_as_json(file, info.pages, numbers, candidates))
        else:
            report.show(candidates, found, info.pages)
        if output:
            page = html.page(file.name, candidates, found, info.pages, _pictures(candidates))
            try:
                write_text(Path(output), page)
            except OSError as error:
                raise storage_error(error, Path(output)) from error
            err.print(f"→ [bold]{one_line(output)}[/bold]", soft_wrap=True)
    raise typer.Exit(_exit_code(candidates, numbers))


def _names(providers: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in providers.split(",") if name.strip()))
    if not names or len(names) > MAX_PROVIDERS:
        raise UserError(f"--providers takes 1 to {MAX_PROVIDERS} names, such as local,openai", code="usage")
    return names


def _count(pages: str) -> int | None:
    """The number of pages to choose; None if `pages` names pages. Raises `UserError` for neither."""
    from pipeline.reading.files.source import check_page_range

    if not pages.strip().isdecimal():
        check_page_range(pages)
        return None
    count = int(pages.strip()[:9])
    if not 1 <= count <= MAX_PAGES:
        raise UserError(f"--pages {count}: compare 1 to {MAX_PAGES} pages", code="usage")
    return count


def _numbers(pages: str, in_file: int) -> list[int]:
    from pipeline.reading.files.source import parse_page_range

    numbers = parse_page_range(pages, in_file)
    if len(numbers) > MAX_PAGES:
        raise UserError(f"--pages names {len(numbers)} pages: compare at most {MAX_PAGES}", code="usage")
    return numbers


def _converted(file: Path, names: Sequence[str], numbers: Sequence[int], demanded: "Demand") -> list[Job]:
    """Convert these pages with each provider; return their ended jobs, in order."""
    from pipeline.flows.documents.rules.escalation import NEVER
    from pipeline.flows.documents.submission import Options
    from pipeline.interfaces.cli.convert.run import follow
    from pipeline.interfaces.cli.convert.targets import Target
    from pipeline.operations import documents

    def submit(job: Job, _progress: "Progress") -> None:
        provider, _, model = job.label.partition(":")
        try:
            # A doubtful page would otherwise go to the provider of the settings, and the texts would be that one's.
            options = Options(",".join(map(str, numbers)), provider, model, allow_partial=True, escalate=NEVER)
            job.document = documents.submit(file, options)
        except UserError as error:
            job.error, job.ended = str(error), True

    def finish(job: Job, _: "Document") -> None:
        job.ended = True

    jobs = [Job(Target(file, None), label=name) for name in names]
    follow(jobs, demanded, submit=submit, finish=finish)
    return jobs


def _result(settings: "Settings", job: Job) -> "Candidate":
    from pipeline.flows.documents.states import PageStatus
    from pipeline.interfaces.cli.compare.figures import Candidate, page_figures
    from pipeline.operations import documents
    from pipeline.providers import registry
    from pipeline.settings import LOCAL

    provider, _, chosen = job.label.partition(":")
    model = registry.model_name(settings, provider, chosen)
    profile = settings.providers.get(provider)
    has_price = provider == LOCAL or (profile is not None and profile.price(model) is not None)
    if job.document is None:
        return Candidate(job.label, model, has_price, error=job.problem)
    calls = documents.paid_attempts(job.document.id)
    pages = [
        page_figures(
            page,
            [call for call in calls if call.page == page.page],
            None if page.status is PageStatus.COMPLETED else page.error or "not converted",
        )
        for page in documents.pages(job.document.id)
    ]
    problem = job.problem
    if job.document.provider != provider:
        problem = f"Penstock reads files of this type itself, without {provider}"
    return Candidate(job.label, model, has_price, job.document.id, job.status, problem or None, pages)


def _with_shares(candidate: "Candidate", found: Mapping[tuple[str, int], "Difference"]) -> "Candidate":
    from pipeline.interfaces.cli.compare.figures import changed_share

    pages = [
        replace(page, changed=changed_share(found[key])) if (key := (candidate.name, page.page)) in found else page
        for page in candidate.pages
    ]
    return replace(candidate, pages=pages)


def _pictures(candidates: Sequence["Candidate"]) -> dict[int, bytes]:
    """The pages' pictures as WebP, by number in the file; leaves out pages that cannot be rendered."""
    from pipeline.operations import documents

    shown = {
        page.page: (each.document_id, page.position) for each in candidates if each.document_id for page in each.pages
    }
    pictures = {}
    for number, (document_id, position) in shown.items():
        with suppress(UserError):
            pictures[number] = documents.page_picture(str(document_id), position, width=_WIDTH, encoding="webp")
    return pictures


def _as_json(file: Path, in_file: int, numbers: Sequence[int], candidates: Sequence["Candidate"]) -> dict[str, Any]:
    shown = []
    for candidate in candidates:
        seconds, cost = candidate.estimate(in_file)
        pages = [
            {name: value for name, value in asdict(page).items() if name != "position"} for page in candidate.pages
        ]
        whole = {"pages": in_file, "seconds": seconds, "cost": cost}
        shown.append({**asdict(candidate), "pages": pages, "whole_file": whole})
    return {"file": str(file), "pages": in_file, "compared": list(numbers), "providers": shown}


def _exit_code(candidates: Sequence["Candidate"], numbers: Sequence[int]) -> int:
    converted = [len(candidate.converted) for candidate in candidates]
    if all(count == len(numbers) for count in converted):
        return DONE
    return PARTIAL if any(converted) else FAILED
