"""A task of docling-serve: one or more documents, and the formats of their results.

Penstock stores no task. The id holds all its parts: the documents' ids joined by dots, then after dashes the formats,
in hexadecimal digits the page break, and after a `k` the options of a chunker. The id of a document alone is a task as
well.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from pipeline.flows.documents.states import DocumentStatus
from pipeline.interfaces.compatibility.docling.options import (
    MAX_PAGE_BREAK,
    Chunker,
    ChunkOptions,
    ConvertOptions,
    Format,
)
from pipeline.operations import documents
from pipeline.operations.caller import Caller
from pipeline.operations.documents import Document
from pipeline.operations.refusal import Refused

MAX_DOCUMENTS = 20
_LETTERS: dict[str, Format] = {"m": "md", "j": "json", "h": "html", "t": "text", "d": "doctags"}
_ID = re.compile(
    rf"[0-9a-f]{{16}}(\.[0-9a-f]{{16}}){{0,{MAX_DOCUMENTS - 1}}}"
    rf"(-[mjhtdez]{{1,8}}(-([0-9a-f]{{2}}){{1,{4 * MAX_PAGE_BREAK}}})?(-k[yi][0-9]{{1,5}}[trsd]{{0,4}})?)?"
)
_WAITING = frozenset({DocumentStatus.PENDING})


_CHUNKERS: dict[str, Chunker] = {"y": "hybrid", "i": "hierarchical"}


@dataclass(frozen=True)
class Chunking:
    """A task's chunker. `documents`: the result has the converted documents as well."""

    chunker: Chunker
    max_tokens: int
    markdown_tables: bool = False
    raw_text: bool = False
    separate: bool = False
    """Join no neighbours."""
    documents: bool = False

    @classmethod
    def of(cls, chunker: Chunker, options: ChunkOptions, *, documents: bool) -> Self:
        """The chunker with the options of a request."""
        tables, raw = options.use_markdown_tables, options.include_raw_text
        return cls(chunker, options.max_tokens, tables, raw, not options.merge_peers, documents)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The chunker that `code` wrote."""
        flags = text.lstrip("kyi0123456789")
        tokens = int(text[2 : len(text) - len(flags)])
        return cls(_CHUNKERS[text[1]], tokens, "t" in flags, "r" in flags, "s" in flags, "d" in flags)

    @property
    def code(self) -> str:
        """The part of a task's id."""
        letter = next(letter for letter, name in _CHUNKERS.items() if name == self.chunker)
        flags = "t" * self.markdown_tables + "r" * self.raw_text + "s" * self.separate + "d" * self.documents
        return f"k{letter}{self.max_tokens}{flags}"


@dataclass(frozen=True)
class Task:
    """`embedded`: with pictures. `zipped`: as a ZIP file, even of one document. `chunking`: the result has chunks.

    `filename`: the name of a single file in this request; not part of the id.
    """

    documents: tuple[str, ...]
    formats: frozenset[Format] = frozenset({"md", "json"})
    page_break: str = ""
    embedded: bool = False
    zipped: bool = False
    filename: str = ""
    chunking: Chunking | None = None

    @classmethod
    def of(
        cls,
        documents: Sequence[str],
        options: ConvertOptions,
        *,
        zipped: bool,
        filename: str = "",
        chunking: Chunking | None = None,
    ) -> Self:
        """The task of documents submitted with these options. A client that sends one file twice gets two results."""
        embedded = options.image_export_mode == "embedded"
        page_break = options.md_page_break_placeholder
        return cls(tuple(documents), frozenset(options.to_formats), page_break, embedded, zipped, filename, chunking)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The task with this id. Raises `Refused`, in the words that clients know."""
        if not _ID.fullmatch(text):
            raise unknown()
        documents, *more = text.split("-")
        if not more:
            return cls(tuple(documents.split(".")))
        formats = frozenset(_LETTERS[letter] for letter in more[0] if letter in _LETTERS)
        chunking = Chunking.parse(more.pop()) if more[-1].startswith("k") else None
        page_break = bytes.fromhex(more[1]).decode(errors="replace") if more[1:] else ""
        ids = tuple(documents.split("."))
        return cls(ids, formats, page_break, "e" in more[0], "z" in more[0], chunking=chunking)

    @property
    def id(self) -> str:
        letters = "".join(letter for letter, name in _LETTERS.items() if name in self.formats)
        letters += "e" * self.embedded + "z" * self.zipped
        parts = [".".join(self.documents), letters, self.page_break.encode().hex()]
        return "-".join([part for part in parts if part] + ([self.chunking.code] if self.chunking else []))

    @property
    def as_zip(self) -> bool:
        """Whether the result is a ZIP file: on request, and for several documents, as with docling-serve; never with
        chunks."""
        return self.chunking is None and (self.zipped or len(self.documents) > 1)


def unknown() -> Refused:
    """The error to raise for an unknown task."""
    return Refused("Task not found.", code="not_found")


def documents_of(caller: Caller, task: Task) -> list[Document]:
    """The task's documents in their order. Raises `Refused` if one is unknown or deleted."""
    wanted = set(task.documents)
    by_id = {document.id: document for document in documents.several.by(caller, wanted)}
    if len(by_id) < len(wanted):
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
        "task_type": "chunk" if task.chunking else "convert",
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
