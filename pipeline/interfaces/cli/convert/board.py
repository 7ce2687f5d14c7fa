"""The progress of `penstock convert`: a bar for each file, a line once it has ended, and why others wait."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from pipeline.engine.nouns import count
from pipeline.interfaces.cli.convert.job import Job, line
from pipeline.interfaces.cli.output import state
from pipeline.interfaces.cli.progress import Bar, Progress
from pipeline.interfaces.cli.times import span

if TYPE_CHECKING:
    from pipeline.flows.documents.views import Load
    from pipeline.operations.documents import Document


SLOW_S = 20.0
"""Seconds after which the board names a page."""
_NAMED, _MOST_ASKED, _MOST_UNDER_WAY = 3, 5, 100


class Board:
    """Shows the jobs of a command."""

    def __init__(self, jobs: Sequence[Job], progress: Progress) -> None:
        self._jobs = jobs
        self._progress = progress
        self._several = len(jobs) > 1
        self._others: dict[str, Load] = {}
        self._retries: dict[str, str] = {}
        self._closed: dict[str, str] = {}
        self._slow: dict[str, str] = {}
        """A document's slow pages, in words."""
        self._show_all()

    def show(self, job: Job) -> None:
        """Show a job's bar, and print a line once the job has ended (for a single file, only if its result is written).
        Of several files, the bars of ended ones go."""
        if job.document is not None:
            if self._several and job.ended:
                self._progress.remove(job.document.id)
            else:
                self._progress.show(job.document.id, self._bar(job, job.document))
        self._show_all()
        if job.ended and (job.written or self._several):
            self._progress.note(line(job))

    def keep(self) -> None:
        """Restart a dead stack, update the bars, and say why work waits. Called about once a second."""
        from pipeline.operations.documents import load_beside, retries

        waiting = [job.document for job in self._jobs if job.document and not job.document.settled]
        self._closed = closed({document.provider for document in waiting})
        begin = [document for document in waiting if _is_unstarted(document)]
        waiting_ids = {document.id for document in waiting}
        providers = {document.provider for document in begin}
        self._others = {provider: load_beside(waiting_ids, provider) for provider in providers}
        waits = retries([document.id for document in begin])
        self._retries = {key: reason.words for key, reason in waits.items()}
        self._slow = {document.id: _slow_pages(document) for document in waiting[:_MOST_ASKED] if document.pages}
        for job in self._jobs:
            if job.document and not job.document.settled:
                self._progress.show(job.document.id, self._bar(job, job.document))
        self._show_all()
        self._progress.keep(lambda: reasons(self._closed))

    def _show_all(self) -> None:
        """Show the bar of all files, or of the only one before it is submitted."""
        if not self._several:
            if self._jobs[0].document is None and not self._jobs[0].ended:
                self._progress.show(
                    "", Bar(self._jobs[0].label or self._jobs[0].target.source.name, 0, None, "", waits="being read")
                )
            else:
                self._progress.remove("")
            return
        ended = sum(job.ended for job in self._jobs)
        documents = {job.document.id: job.document for job in self._jobs if job.document}.values()
        done = sum(document.completed_count + document.failed_count for document in documents)
        pages = sum(document.pages for document in documents)
        is_known = all(job.ended or (job.document and job.document.pages) for job in self._jobs)
        figures = f"{ended:,}/{count(len(self._jobs), 'file')}"
        figures += f", {done:,}/{count(pages, 'page')}" if pages else ""
        waits = (
            "" if done else next((why for job in self._jobs if job.document and (why := self._waits(job.document))), "")
        )
        self._progress.show("", Bar("all files", done, pages if is_known else None, figures, waits=waits))

    def _bar(self, job: Job, document: "Document") -> Bar:
        failed = f", [red]{document.failed_count:,} failed[/red]" if document.failed_count else ""
        figures = f"{document.completed_count:,}/{count(document.pages, 'page')}{failed}" if document.pages else ""
        done = document.completed_count + document.failed_count
        return Bar(
            job.label or job.target.source.name,
            done,
            document.pages or None,
            figures,
            state(document.status.name),
            waits=self._waits(document) or (self._slow.get(document.id, "") if done < document.pages else ""),
        )

    def _waits(self, document: "Document") -> str:
        """Why a document without a finished page waits: a closed gate, a retry, or that it is still to be split and
        which documents are before it. Empty if a page is finished, the document is settled, or no reason is known."""
        if document.settled or not _is_unstarted(document):
            return ""
        if why := self._closed.get(document.provider):
            return why
        if why := self._retries.get(document.id):
            return why
        split = "waits to be split" if document.status.name == "PENDING" else ""
        others = self._others.get(document.provider)
        behind = f"behind {_words(others)}" if others and others.documents else ""
        return ", ".join(part for part in (split, behind) if part)


def _slow_pages(document: "Document") -> str:
    """The pages in work for `SLOW_S` seconds or more, in words, the longest first and by their numbers in the file:
    names the first `_NAMED`, counts the others. Empty if none is slow."""
    from pipeline.flows.documents.states import PageStatus
    from pipeline.operations.documents import pages
    from pipeline.process import get_context

    now = get_context().db.now()
    under_way = pages(document.id, status=PageStatus.PROCESSING, limit=_MOST_UNDER_WAY)
    took = sorted(((now - page.updated_at).total_seconds(), page.page_source) for page in under_way)
    slow = [f"page {number} since {span(seconds)}" for seconds, number in reversed(took) if seconds >= SLOW_S]
    further = f" and {len(slow) - _NAMED:,} more" if len(slow) > _NAMED else ""
    return f"slow: {', '.join(slow[:_NAMED])}{further}" if slow else ""


def closed(providers: Collection[str]) -> dict[str, str]:
    """By provider, the reason in words why the gate of its vision queue is closed; leaves out providers with an open
    gate."""
    from pipeline.engine.gate_registry import queue_name
    from pipeline.process import get_context
    from pipeline.providers.gates import closed_because

    reasons = {name: closed_because(get_context(), queue_name("vision", name)) for name in sorted(providers)}
    return {name: why for name, why in reasons.items() if why}


def reasons(closed: Mapping[str, str]) -> list[str]:
    """A sentence for each provider of `closed`: the reason, and that its pages wait."""
    return [f"{why}: its pages wait, and continue once it is over (`penstock queues`)." for why in closed.values()]


def _words(load: "Load") -> str:
    return f"{count(load.pages, 'page')} of others" if load.pages else count(load.documents, "other document")


def _is_unstarted(document: "Document") -> bool:
    return document.status.name in {"PENDING", "PROCESSING"} and not document.completed_count + document.failed_count
