"""Takes the tagged documents of a paperless through Penstock's documents flow, and writes their results back."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from pipeline.engine.errors import UnitError, UserError
from pipeline.engine.nouns import count
from pipeline.flows.documents import submission
from pipeline.interfaces.cli.connect.client import Paperless, PaperlessDocument, PaperlessError
from pipeline.interfaces.cli.connect.record import Record, Records
from pipeline.interfaces.cli.connect.rules import Part, Tags, Verdict, changes, judge, shortened
from pipeline.interfaces.cli.convert.board import closed, reasons
from pipeline.interfaces.cli.output import one_line, state
from pipeline.interfaces.cli.progress import Bar, Progress
from pipeline.operations import documents
from pipeline.process import get_context
from pipeline.reading.export.markdown import blocks, plain_text
from pipeline.reading.sandbox.limits import NO_READER

if TYPE_CHECKING:
    from pipeline.operations.documents import Document

WINDOW = 16
"""Documents of paperless under way at once."""
LOOK_EVERY_S = 0.5
MOST_TITLE_PAGES = 3
_OURS = NO_READER | {"disk_full", "permission", "io_error", "busy"}
"""Codes of errors for which this machine is to blame, not the file."""
_MOST_DOWN = 3
"""Requests in a row that fail for want of an answer, after which paperless is down."""


class Outcome(StrEnum):
    """How a document ended in a run."""

    WRITTEN = "written"
    FAILED = "failed"
    LEFT = "left"
    """It keeps its tag, and the next run takes it."""
    DROPPED = "dropped"
    """It is gone, or a user removed its tag."""


class Failed(Exception):
    """The document cannot be converted or written back; the message says why."""


@dataclass
class Taken:
    """A document of paperless under way."""

    row: PaperlessDocument
    record: Record
    document: "Document | None" = None


@dataclass
class Run:
    """One pass over tagged documents."""

    paperless: Paperless
    records: Records
    tags: Tags
    parts: frozenset[Part]
    options: submission.Options
    progress: Progress
    outcomes: Counter[str] = field(default_factory=Counter)
    _open: dict[int, Taken] = field(default_factory=dict)
    _down: int = 0

    def over(self, rows: Iterable[PaperlessDocument]) -> None:
        """Convert these documents, and write each result back once it is there.

        Raises `PaperlessError` if paperless stops answering or refuses the token, `UserError` for options that suit no
        document. A kill at any moment loses nothing: the next run continues.
        """
        submission.check(get_context(), self.options)
        waiting = deque(rows)
        while waiting or self._open:
            while waiting and len(self._open) < WINDOW:
                row = waiting.popleft()
                self._guarded(row, partial(self._take, row))
            known = {each.id: each for each in documents.several([t.record.document for t in self._open.values()])}
            for taken in list(self._open.values()):
                taken.document = known.get(taken.record.document)
                self._guarded(taken.row, partial(self._advance, taken))
            self._show(len(waiting))
            if self._open:
                time.sleep(LOOK_EVERY_S)

    def _guarded(self, row: PaperlessDocument, step: Callable[[], None]) -> None:
        """Make one step of a document. An error that is the document's fails it; after others it keeps its tag."""
        try:
            step()
        except (Failed, PaperlessError) as error:
            try:
                if isinstance(error, PaperlessError) and not error.blames_document:
                    raise
                self._fail(row, str(error))
            except PaperlessError as fault:
                self._down += fault.is_down
                if fault.code == "http_401" or self._down >= _MOST_DOWN:
                    raise
                self._end(row, Outcome.LEFT, str(fault))
        else:
            self._down = 0

    def _take(self, row: PaperlessDocument) -> None:
        current = self.paperless.document(row.id)
        if current is None or self.tags.waiting not in current.tags:
            self._end(row, Outcome.DROPPED, "it is gone, or lost its tag")
            return
        record = self.records.load(row.id)
        if record is None or record.failed or current.source(record.pdf_sha256).checksum != record.checksum:
            self.records.remove(row.id)
            record = Record.of(current)
            self.records.save(record)  # before anything takes long: later edits count as a user's
        self._submit(current, record)
        self._open[row.id] = Taken(current, record)

    def _submit(self, current: PaperlessDocument, record: Record) -> None:
        """Submit the document's source. The same file and options return the same document: after a kill, nothing is
        converted twice."""
        settings = get_context().settings
        copy = settings.upload_dir / f"incoming-{uuid4().hex}"
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self.paperless.download(current, copy)
            record.document = documents.submit_upload(copy, current.name, self.options).id
        except UserError as error:
            if isinstance(error, PaperlessError) or error.code in _OURS:
                raise
            raise Failed(str(error)) from None
        finally:
            copy.unlink(missing_ok=True)
        self.records.save(record)

    def _advance(self, taken: Taken) -> None:
        document = taken.document
        if document is None:
            raise Failed("a user deleted its document in Penstock")
        if not document.settled:
            return
        match document.status.name:
            case "COMPLETED":
                self._write_back(taken, document)
            case "PAUSED":
                advice = f"paused: `penstock documents resume {document.id}` continues"
                self._end(taken.row, Outcome.LEFT, advice)
            case name:
                why = (document.error or documents.commonest_error(document.id) or name.lower()).rstrip(".")
                raise Failed(f"{why}. `penstock documents pages {document.id} --failed` says more")

    def _write_back(self, taken: Taken, document: "Document") -> None:
        record, row = taken.record, taken.row
        texts = [text for _, text in documents.page_texts(document.id)]
        text = "\n\n".join(map(plain_text, texts)).strip() if Part.TEXT in self.parts else None
        if text == "":
            raise Failed("no text was found in it, so its text in paperless stays")
        current = self.paperless.document(row.id)
        match judge(record, current, self.tags.waiting, text):
            case Verdict.RETAKE:
                del self._open[row.id]
                self._take(row)
            case Verdict.EDITED:
                raise Failed("its text was edited in paperless during the conversion, and stays")
            case Verdict.WRITE if current is not None:
                title = _title(texts) if Part.TITLE in self.parts else None
                self.paperless.change(row.id, changes(record, current, self.tags, text, title))
                self.records.remove(row.id)
                self._end(row, Outcome.WRITTEN, document=document)
            case _:
                self.records.remove(row.id)
                self._end(row, Outcome.DROPPED, "it is gone, or lost its tag")

    def _fail(self, row: PaperlessDocument, why: str) -> None:
        """Replace the document's tag by that of failures, so that the next run does not take it again."""
        current = self.paperless.document(row.id)
        if current is not None and self.tags.waiting in current.tags:
            self.paperless.change(row.id, {"tags": self.tags.after(current.tags, failed=True)})
        record = self.records.load(row.id) or Record(row.id, "", "", row.title)
        record.failed = why
        self.records.save(record)
        self._end(row, Outcome.FAILED, why)

    def _end(self, row: PaperlessDocument, outcome: Outcome, why: str = "", document: "Document | None" = None) -> None:
        self._open.pop(row.id, None)
        self.progress.remove(str(row.id))
        self.outcomes[outcome] += 1
        pages = f" [dim]({count(document.pages, 'page')})[/dim]" if document else ""
        colour = {Outcome.WRITTEN: "green", Outcome.FAILED: "red"}.get(outcome, "yellow")
        reason = f": {one_line(why)}" if why else ""
        self.progress.note(f"#{row.id} {one_line(row.name)}: [{colour}]{outcome}[/{colour}]{pages}{reason}")

    def _show(self, waiting: int) -> None:
        moving = [taken.document for taken in self._open.values() if taken.document]
        for taken in self._open.values():
            if document := taken.document:
                done = document.completed_count + document.failed_count
                figures = f"{done:,}/{count(document.pages, 'page')}" if document.pages else ""
                bar = Bar(
                    f"#{taken.row.id} {taken.row.name}",
                    done,
                    document.pages or None,
                    figures,
                    state(document.status.name),
                )
                self.progress.show(str(taken.row.id), bar)
        if waiting or self._open:
            ended = self.outcomes.total()
            total = ended + waiting + len(self._open)
            self.progress.show("", Bar("all documents", ended, total, f"{ended:,}/{count(total, 'document')}"))
        self.progress.keep(lambda: reasons(closed({document.provider for document in moving})))


def _title(texts: Sequence[str]) -> str | None:
    """Return the first heading on the first pages, as a title; None without one."""
    for text in texts[:MOST_TITLE_PAGES]:
        with suppress(UnitError):  # no child process could read a large page
            for block in blocks(text):
                if block["type"] == "heading" and (title := shortened(str(block["text"]))):
                    return title
    return None
