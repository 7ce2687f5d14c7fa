"""One input of `penstock convert`, from its source to its output, and the lines that report it."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.engine.nouns import count
from pipeline.engine.views import money
from pipeline.interfaces.cli.convert.judgement import Judgement, Verdict
from pipeline.interfaces.cli.output import one_line, state
from pipeline.reading.export.formats import Format

if TYPE_CHECKING:
    from pipeline.interfaces.cli.convert.targets import Target
    from pipeline.interfaces.cli.results import Origin
    from pipeline.operations.documents import Document

DONE, FAILED, PARTIAL = 0, 1, 3
_NAMED = 5
"""How many files of other types the report names."""
_LISTED = 20
"""How many files of archives the report lists."""
_NOT_IN_ITS_FOLDER = " (a pipe, or a link out of the folder)"


@dataclass
class Job:
    """One input, its output, and its state."""

    target: "Target"
    form: Format = Format.MD
    origin: "Origin | None" = None
    """The source and options of the result, once the source has been read."""
    judgement: Judgement = Judgement(Verdict.CONVERT)  # noqa: RUF009  # it is frozen
    document: "Document | None" = None
    before: "Document | None" = None
    """The document before the request whose pages the job's line sums up; None: it sums up all."""
    error: str = ""
    code: str = ""
    """The error's code, if the file was refused."""
    ended: bool = False
    written: Path | None = None
    content: bytes = b""
    """The result for standard output, written once the bars are gone."""
    started: float = field(default_factory=time.monotonic)
    took_s: float = 0.0
    label: str = ""
    """The job's name in bars and lines, if not that of its source."""

    @property
    def is_wanted(self) -> bool:
        """Whether the job's judgement is CONVERT: its file is to be converted, or was."""
        return self.judgement.verdict is Verdict.CONVERT

    @property
    def status(self) -> str:
        """The document's state by name; UP_TO_DATE or KEPT if the job is not wanted, REFUSED without a document."""
        if not self.is_wanted:
            return self.judgement.verdict.value
        return self.document.status.name if self.document else "REFUSED"

    @property
    def exit_code(self) -> int:
        """The job's exit code: 0 converted or without need to; 3 some pages failed; 1 refused, failed, cancelled,
        paused, not written for an error or for foreign pictures in its place, or without `--keep` a result kept that is
        out of date or not our own."""
        if not self.is_wanted:
            return FAILED if self.judgement.behind else DONE
        if self.document is None or self.error:
            return FAILED
        if self.status == "COMPLETED":
            return DONE
        return PARTIAL if self.status == "PARTIAL_FAILED" else FAILED

    @property
    def problem(self) -> str:
        """The job's problem and its remedy, or why its result is kept; empty otherwise."""
        return self.error or self.judgement.reason or (_advice(self.document) if self.document else "")


def passed_over(files: Sequence[Path]) -> str:
    """A sentence that names the files of other types in folders."""
    from pipeline.reading.files.inputs import is_input_name

    further = f" and {len(files) - _NAMED:,} more" if len(files) > _NAMED else ""
    names = [one_line(str(path)) + (_NOT_IN_ITS_FOLDER if is_input_name(path) else "") for path in files[:_NAMED]]
    return f"Left out {count(len(files), 'file')} of other types: {', '.join(names)}{further}."


def not_unpacked(refused: Mapping[Path, str]) -> Iterable[str]:
    """Sentences that name files of archives which are left out, with the reasons."""
    for path, reason in list(refused.items())[:_LISTED]:
        yield f"Left out {one_line(str(path))}: {one_line(reason)}"
    if len(refused) > _LISTED:
        yield f"Left out {len(refused) - _LISTED:,} more files of archives; `--json` lists them."


def orphaned(results: Sequence[Path]) -> str:
    """A sentence that names results whose sources no longer exist."""
    further = f" and {len(results) - _NAMED:,} more" if len(results) > _NAMED else ""
    names = ", ".join(one_line(str(path)) for path in results[:_NAMED])
    return f"Kept {count(len(results), 'result')} whose source is gone: {names}{further}."


def line(job: Job) -> str:
    """How a job ended, as one line of markup."""
    pages = f" [dim]({count(job.document.pages, 'page')})[/dim]" if job.document and job.document.pages else ""
    if job.document and job.document.doubtful_count and job.written:
        command = f"`penstock documents pages {job.document.id} --doubtful`"
        pages += f", [yellow]{job.document.doubtful_count:,} doubtful[/yellow] ({command})"
    if job.document and job.document.settled and (went := escalation(job.document, job.before)):
        pages += f", {went}"
    written = f" → [bold]{one_line(str(job.written))}[/bold]" if job.written else ""
    ended = f": {state(job.status)}" if not (job.written and job.status == "COMPLETED") else ""
    why = f": {one_line(job.problem)}" if job.problem else ""
    return f"{one_line(job.label or str(job.target.label))}{written}{ended}{pages}{why}"


def escalation(document: "Document", before: "Document | None" = None) -> str:
    """How many pages went to other providers at what cost, since `before` if given, and what to do about those that the
    budget left out; empty without such pages."""
    from pipeline.operations.documents import escalated_to

    sent: Mapping[str, tuple[int, float]] = {}
    if before:
        sent = {
            document.escalate: (
                document.escalated_pages - before.escalated_pages,
                document.escalated_cost - before.escalated_cost,
            )
        }
    elif document.escalated_pages:
        sent = escalated_to(document.id)
    of = f" of {count(document.pages, 'page')} went"
    parts: list[str] = []
    for name, (pages, cost) in sent.items():
        if pages:
            parts.append(f"{pages:,}{'' if parts else of} to {name} ({money(cost)})")
    if unpaid := document.unpaid_pages:
        more = "20p" if document.budget.endswith("p") else "2.00"
        command = f"`penstock documents escalate {document.id} --budget {more}`"
        parts.append(f"budget spent before {count(unpaid, 'page')}: {command} sends more")
    return ", ".join(parts)


def report(jobs: Sequence[Job]) -> Iterable[str]:
    """The closing lines, as markup: a summary of several files; of a single one, that it is up to date, or its problem
    unless it was written; else none."""
    if len(jobs) > 1:
        yield summary(jobs)
        return
    for job in jobs:
        if job.status == Verdict.UP_TO_DATE:
            yield f"{one_line(str(job.target.path))} is up to date: nothing to do."
        elif job.problem and not job.written:  # otherwise its line has reported it
            where = "" if not job.is_wanted or str(job.target.label) in job.problem else f"{job.target.label}: "
            mark = "[red]penstock:[/red] " if job.exit_code else ""
            yield f"{mark}{one_line(where + job.problem)}"


def summary(jobs: Sequence[Job]) -> str:
    """The outcome of several files, as one line."""
    written = sum(job.written is not None for job in jobs)
    current = sum(job.status == Verdict.UP_TO_DATE for job in jobs)
    kept = sum(job.status == Verdict.KEPT for job in jobs)
    failed = sum(job.exit_code != DONE for job in jobs if job.is_wanted)
    parts = [f"{written:,} written"] if written or current + kept < len(jobs) else []
    parts += [f"[red]{failed:,} with problems[/red]"] if failed else []
    parts += [f"{current:,} up to date"] if current else []
    parts += [f"{kept:,} kept"] if kept else []
    nothing = ", nothing to do" if current == len(jobs) else ""
    return f"{count(len(jobs), 'file')}: {', '.join(parts)}{nothing}."


def _advice(document: "Document") -> str:
    """The problem of a document that is PARTIAL_FAILED, FAILED, CANCELLED or PAUSED, with its remedy if there is one;
    empty in other states."""
    how = (
        f"`penstock documents pages {document.id} --failed` says of each why; "
        f"`penstock documents retry {document.id} --failed` tries again"
    )
    match document.status.name:
        case "PARTIAL_FAILED":
            kept = (
                ""
                if document.merged_path and not document.outdated
                else ", or use --allow-partial to write what there is"
            )
            return f"{document.failed_count:,} of {document.pages:,} pages failed{_because(document.id)}. {how}{kept}."
        case "FAILED":
            why = _unknown_to_the_stack(document) or document.error or "failed"
            return f"{why.rstrip('.')}. {how}." if document.failed_count else why
        case "CANCELLED":
            return f"cancelled; `penstock documents retry {document.id}` starts again"
        case "PAUSED":
            return f"paused; `penstock documents resume {document.id}` continues"
    return ""


def _unknown_to_the_stack(document: "Document") -> str:
    """A sentence if the document failed because the stack's workers lack its provider, which this command's settings
    have; empty for other failures."""
    from pipeline.providers.registry import unknown_to_workers
    from pipeline.settings import get_settings

    missing = f"there is no provider '{document.provider}'" in (document.error or "")
    if not missing or document.provider not in get_settings().providers:
        return ""
    return unknown_to_workers(document.provider)


def _because(document_id: str) -> str:
    from pipeline.operations.documents import commonest_error

    why = commonest_error(document_id).rstrip(".")
    return f": {why}" if why else ""


def as_json(job: Job) -> dict[str, Any]:
    """The dict that `--json` reports for a job."""
    document = job.document
    current = job.target.path if job.status == Verdict.UP_TO_DATE else None
    output = job.written or current
    return {
        "input": str(job.target.label),
        "output": str(output) if output else None,
        "id": document.id if document else None,
        "status": job.status,
        "pages": document.pages if document else None,
        "completed": document.completed_count if document else None,
        "failed": document.failed_count if document else None,
        "doubtful": document.doubtful_count if document else None,
        "cost": document.cost if document else None,
        "escalated": document.escalated_pages if document else None,
        "escalated_cost": document.escalated_cost if document else None,
        "unpaid": document.unpaid_pages if document else None,
        "error": job.error or job.judgement.reason or (document.error if document else None),
        "seconds": round(job.took_s, 3),
    }
