"""Takes the tagged documents of a paperless through Penstock's documents flow, and writes their results back."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from pipeline.engine.errors import UnitError, UserError
from pipeline.engine.nouns import count
from pipeline.flows.documents import submission
from pipeline.interfaces.cli.connect.client import Paperless, PaperlessDocument, PaperlessError
from pipeline.interfaces.cli.connect.record import Record, Records, digest
from pipeline.interfaces.cli.connect.rules import Part, Tags, Verdict, changes, is_upload, judge, shortened, upload_name
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
ASK_EVERY_S = 2.0
"""Seconds between questions about an upload."""
UNSURE_S = 60.0
"""Seconds after which an upload without an answer is repeated if paperless does not list its task."""
PATIENCE_S = 900.0
"""Seconds after which an upload that paperless has not consumed is left to the next run."""
MOST_TITLE_PAGES = 3
_OURS = NO_READER | {"disk_full", "permission", "io_error", "busy"}
"""Codes of errors for which this machine is to blame, not the file."""
_MOST_DOWN = 3
"""Documents in a row for which paperless gives no answer, after which it is down."""


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
    asked_at: float = float("-inf")
    """The time of the latest question about its upload (monotonic)."""


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
    _retaken: set[int] = field(default_factory=set)
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

    def _take(self, row: PaperlessDocument) -> None:
        current = self.paperless.document(row.id)
        self._down = 0
        if current is None or self.tags.waiting not in current.tags:
            self._end(row, Outcome.DROPPED, "it is gone, or lost its tag")
            return
        record = self.records.load(row.id)
        if record is None or record.failed or current.source(record.uploaded).checksum != record.checksum:
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
            with _blaming_document():
                record.document = documents.submit_upload(copy, current.name, self.options).id
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
        if record.sent_at and time.monotonic() - taken.asked_at < ASK_EVERY_S:
            return
        taken.asked_at = time.monotonic()
        texts = [text for _, text in documents.page_texts(document.id)]
        text = "\n\n".join(map(plain_text, texts)).strip() if Part.TEXT in self.parts else None
        if text == "":
            raise Failed("no text was found in it, so its text in paperless stays")
        current = self.paperless.document(row.id)
        self._down = 0
        if current and record.uploaded and not record.consumed and current.has_version(record.uploaded):
            # Paperless has replaced the text by the one that it read in our version.
            record.content, record.consumed = digest(current.content), True
            self.records.save(record)
        match judge(record, current, self.tags.waiting, text):
            case Verdict.RETAKE if row.id in self._retaken:
                self._end(row, Outcome.LEFT, "its file changes again and again")
            case Verdict.RETAKE:
                self._retaken.add(row.id)
                del self._open[row.id]
                self._take(row)
            case Verdict.EDITED:
                raise Failed("its text was edited in paperless during the conversion, and stays")
            case Verdict.WRITE if current is not None:
                title = _title(texts) if Part.TITLE in self.parts else None
                if Part.PDF in self.parts and not self._has_pdf(taken, replace(current, title=title or current.title)):
                    return
                self.paperless.change(row.id, changes(record, current, self.tags, text, title))
                self.records.remove(row.id)
                self._end(row, Outcome.WRITTEN, document=document)
            case _:
                self.records.remove(row.id)
                self._end(row, Outcome.DROPPED, "it is gone, or lost its tag")

    def _has_pdf(self, taken: Taken, current: PaperlessDocument) -> bool:
        """Whether paperless has consumed the searchable PDF. Uploads it once: after a kill or a lost answer, the next
        look finds its checksum in paperless, or the task that consumes it."""
        record = taken.record
        if not record.pdf_sha256:
            with _blaming_document():
                pdf = documents.searchable_pdf(record.document, progress=partial(self._show_pages, taken.row))
            self.records.keep_pdf(record, pdf.read_bytes())
            return False  # that may have taken minutes: look at the document again before any change
        if current.versions is None:
            if is_upload(current.name) or self.paperless.has_file(record.pdf_md5):
                return True
        elif current.has_version(record.pdf_sha256):
            return True
        name = upload_name(current.name, record.pdf_sha256)
        if record.sent_at and not record.task:
            record.task = self.paperless.task_of(name)
        task = self.paperless.task(record.task) if record.task else None
        if task is not None and task.is_over:
            if task.error:
                raise Failed(f"paperless refused the searchable PDF: {task.error}")
            return True
        waited_s = time.time() - record.sent_at
        if not record.task and waited_s > UNSURE_S:
            record.sent_at = time.time()
            self.records.save(record)
            tags = self.tags.after(current.tags)
            record.task = self.paperless.upload(self.records.pdf(record.id), name, current, tags)
            self.records.save(record)
        elif waited_s > PATIENCE_S:
            self._end(taken.row, Outcome.LEFT, "paperless has not consumed the searchable PDF yet")
        return False

    def _fail(self, row: PaperlessDocument, why: str) -> None:
        """Replace the document's tag by that of failures, so that the next run does not take it again."""
        current = self.paperless.document(row.id)
        if current is not None and self.tags.waiting in current.tags:
            self.paperless.change(row.id, {"tags": self.tags.after(current.tags, failed=True)})
        record = self.records.load(row.id) or Record(row.id, "", "", row.title)
        record.failed = why
        self.records.save(record)
        self.records.pdf(row.id).unlink(missing_ok=True)
        self._end(row, Outcome.FAILED, why)

    def _end(self, row: PaperlessDocument, outcome: Outcome, why: str = "", document: "Document | None" = None) -> None:
        self._open.pop(row.id, None)
        self.progress.remove(str(row.id))
        self.outcomes[outcome] += 1
        pages = f" [dim]({count(document.pages, 'page')})[/dim]" if document else ""
        colour = {Outcome.WRITTEN: "green", Outcome.FAILED: "red"}.get(outcome, "yellow")
        reason = f": {one_line(why)}" if why else ""
        self.progress.note(f"#{row.id} {one_line(row.name)}: [{colour}]{outcome}[/{colour}]{pages}{reason}")

    def _show_pages(self, row: PaperlessDocument, done: int, pages: int) -> None:
        """Show how much of a searchable PDF is made."""
        figures = f"{done:,}/{count(pages, 'page')}"
        self.progress.show(str(row.id), Bar(f"#{row.id} {row.name}", done, pages, figures, "PDF"))

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


@contextmanager
def _blaming_document() -> Iterator[None]:
    """Turn errors of this block that are the document's into `Failed`."""
    try:
        yield
    except UserError as error:
        if error.code in _OURS:
            raise
        raise Failed(str(error)) from None


def _title(texts: Sequence[str]) -> str | None:
    """Return the first heading on the first pages, as a title; None without one."""
    for text in texts[:MOST_TITLE_PAGES]:
        with suppress(UnitError):  # no child process could read a large page
            for block in blocks(text):
                if block["type"] == "heading" and (title := shortened(str(block["text"]))):
                    return title
    return None
