"""One input of `penstock convert` on its way to its output, and what is said about it."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.interfaces.cli.output import count, one_line, state

if TYPE_CHECKING:
    from pipeline.interfaces.cli.convert.targets import Target
    from tasks.documents import Document

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


def line(job: Job) -> str:
    """How a job ended, as one line."""
    pages = f" [dim]({count(job.document.pages, 'page')})[/dim]" if job.document and job.document.pages else ""
    written = f" → [bold]{one_line(str(job.written))}[/bold]" if job.written else ""
    ended = f": {state(job.status)}" if not (job.written and job.status == "COMPLETED") else ""
    return f"{one_line(str(job.target.source))}{written}{ended}{pages}"


def report(jobs: list[Job]) -> Iterable[str]:
    """The closing lines: what went wrong, what to do about it, and a summary of several files."""
    several = len(jobs) > 1
    for job in jobs:
        sentence = "" if job.kept and several else job.error or advice(job)
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


def advice(job: Job) -> str:
    """What to do about a document that is not COMPLETED; empty if it is."""
    document = job.document
    assert document is not None
    match document.status.name:
        case "PARTIAL_FAILED":
            how = (
                f"`penstock documents pages {document.id} --failed` says why; "
                f"`penstock documents retry {document.id} --failed` tries again"
            )
            kept = (
                ""
                if document.merged_path and not document.outdated
                else ", or use --allow-partial to write what there is"
            )
            return f"{document.failed_count:,} of {document.pages:,} pages failed. {how}{kept}."
        case "FAILED":
            return document.error or "failed"
        case "CANCELLED":
            return f"cancelled; `penstock documents retry {document.id}` starts again"
        case "PAUSED":
            return f"paused; `penstock documents resume {document.id}` continues"
    return ""


def as_json(job: Job) -> dict[str, Any]:
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
