"""A task of docling-serve: one or more documents, and the formats of their results.

Penstock stores no task. The id holds all its parts: the documents' ids joined by dots, then after a dash the formats
and, in hexadecimal digits, the page break. The id of a document alone is a task as well.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from pipeline.flows.documents.states import DocumentStatus
from pipeline.interfaces.compatibility.docling.options import MAX_PAGE_BREAK, ConvertOptions, Format
from pipeline.operations import documents
from pipeline.operations.caller import Caller
from pipeline.operations.documents import Document
from pipeline.operations.refusal import Refused

MAX_DOCUMENTS = 20
_LETTERS: dict[str, Format] = {"m": "md", "j": "json", "h": "html", "t": "text", "d": "doctags"}
_ID = re.compile(
    rf"[0-9a-f]{{16}}(\.[0-9a-f]{{16}}){{0,{MAX_DOCUMENTS - 1}}}"
    rf"(-[mjhtdez]{{1,8}}(-([0-9a-f]{{2}}){{1,{4 * MAX_PAGE_BREAK}}})?)?"
)
_WAITING = frozenset({DocumentStatus.PENDING})


@dataclass(frozen=True)
class Task:
    """`embedded`: with pictures. `zipped`: as a ZIP file, even of one document.

    `filename`: the name of a single file in this request; not part of the id.
    """

    documents: tuple[str, ...]
    formats: frozenset[Format] = frozenset({"md", "json"})
    page_break: str = ""
    embedded: bool = False
    zipped: bool = False
    filename: str = ""

    @classmethod
    def of(cls, documents: Sequence[str], options: ConvertOptions, *, zipped: bool, filename: str = "") -> Self:
        """The task of documents submitted with these options; two submissions that gave the same document count
        once."""
        embedded = options.image_export_mode == "embedded"
        page_break = options.md_page_break_placeholder
        return cls(
            tuple(dict.fromkeys(documents)), frozenset(options.to_formats), page_break, embedded, zipped, filename
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """The task with this id. Raises `Refused`, in the words that clients know."""
        if not _ID.fullmatch(text):
            raise unknown()
        documents, *more = text.split("-")
        if not more:
            return cls(tuple(documents.split(".")))
        formats = frozenset(_LETTERS[letter] for letter in more[0] if letter in _LETTERS)
        page_break = bytes.fromhex(more[1]).decode(errors="replace") if more[1:] else ""
        return cls(tuple(documents.split(".")), formats, page_break, "e" in more[0], "z" in more[0])

    @property
    def id(self) -> str:
        letters = "".join(letter for letter, name in _LETTERS.items() if name in self.formats)
        letters += "e" * self.embedded + "z" * self.zipped
        parts = [".".join(self.documents), letters]
        return "-".join(parts + ([self.page_break.encode().hex()] if self.page_break else []))

    @property
    def as_zip(self) -> bool:
        """Whether the result is a ZIP file: on request, and for several documents, as with docling-serve."""
        return self.zipped or len(self.documents) > 1


def unknown() -> Refused:
    """The error to raise for an unknown task."""
    return Refused("Task not found.", code="not_found")


def documents_of(caller: Caller, task: Task) -> list[Document]:
    """The task's documents in their order. Raises `Refused` if one is unknown or deleted."""
    by_id = {document.id: document for document in documents.several.by(caller, task.documents)}
    if len(by_id) < len(task.documents):
        raise unknown()
    return [by_id[document] for document in task.documents]


def has_result(document: Document) -> bool:
    """Whether the document has merged text: it is complete, or failed in part and its other pages are merged since the
    last retry."""
    if document.status is DocumentStatus.PARTIAL_FAILED:
        return document.merged_path is not None and not document.outdated and document.completed_count > 0
    return document.status is DocumentStatus.COMPLETED


def conversion_status(document: Document) -> str:
    """A document's state in Docling's words, such as `partial_success`."""
    if has_result(document):
        return "success" if document.status is DocumentStatus.COMPLETED else "partial_success"
    if document.at_rest:
        return "failure"
    return "pending" if document.status in _WAITING else "started"


def message(document: Document) -> str:
    """The reason, in words, why a document has no result."""
    if document.status is DocumentStatus.CANCELLED:
        return "the conversion was cancelled"
    if document.status is DocumentStatus.PARTIAL_FAILED:
        return f"{document.failed_count} of {document.pages} pages failed"
    return document.error or "the conversion failed"


def status(task: Task, documents: Sequence[Document]) -> dict[str, Any]:
    """The task's status in docling-serve's shape.

    Only `success` and `failure` end it: once all documents are at rest, it has failed if none has a result.
    """
    ended = [document for document in documents if document.at_rest]
    succeeded = sum(map(has_result, documents))
    if len(ended) == len(documents):
        state = "success" if succeeded else "failure"
    else:
        waiting = all(document.status in _WAITING for document in documents)
        state = "pending" if waiting else "started"
    why = "; ".join(f"{document.filename}: {message(document)}" for document in ended if not has_result(document))
    failed = state == "failure"
    return {
        "task_id": task.id,
        "task_type": "convert",
        "task_status": state,
        "task_position": None,
        "task_meta": {
            "num_docs": len(documents),
            "num_processed": len(ended),
            "num_succeeded": succeeded,
            "num_partially_succeeded": sum(conversion_status(document) == "partial_success" for document in documents),
            "num_failed": len(ended) - succeeded,
        },
        "error_message": why[:2000] if failed else None,
        "failure": {
            "category": "unknown",
            "message": why[:2000],
            "retryable": False,
            "phase": "execution",
            "details": {},
        }
        if failed
        else None,
    }
