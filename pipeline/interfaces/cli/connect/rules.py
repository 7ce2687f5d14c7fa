"""Decisions about one document of paperless: values in, values out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from pipeline.interfaces.cli.connect.record import Record, digest
from pipeline.reading.files.source import safe_stem

if TYPE_CHECKING:
    from pipeline.interfaces.cli.connect.client import PaperlessDocument

_UPLOAD = re.compile(r"\.penstock-[0-9a-f]{8}\.pdf")
MAX_TITLE = 128
"""Characters of a title in paperless."""


class Part(StrEnum):
    """A part of the result to write back."""

    TEXT = "text"
    TITLE = "title"
    PDF = "pdf"


class Verdict(StrEnum):
    """What to do with a result, judged by the document's state in paperless."""

    WRITE = "write"
    DROP = "drop"
    """Nothing: it is gone, or lost its tag."""
    RETAKE = "retake"
    """Take it again: its file changed."""
    EDITED = "edited"
    """A user edited its text, which stays."""


@dataclass(frozen=True)
class Tags:
    """The ids of the tags that mark documents as waiting, done (None: no tag) and failed."""

    waiting: int
    done: int | None
    failed: int

    def after(self, tags: Sequence[int], *, failed: bool = False) -> list[int]:
        """Return a document's tags after its success or failure: its other tags stay."""
        added = self.failed if failed else self.done
        kept = [tag for tag in tags if tag not in {self.waiting, self.done, self.failed}]
        return [*kept, added] if added is not None else kept


def judge(record: Record, current: "PaperlessDocument | None", waiting: int, text: str | None) -> Verdict:
    """Compare a document with its state when taken. `text`: the text to write; None writes none."""
    if current is None or waiting not in current.tags:
        return Verdict.DROP
    if current.source(record.uploaded).checksum != record.checksum:
        return Verdict.RETAKE
    if text is not None and digest(current.content) not in {record.content, digest(text)}:
        return Verdict.EDITED
    return Verdict.WRITE


def changes(
    record: Record, current: "PaperlessDocument", tags: Tags, text: str | None, title: str | None
) -> dict[str, object]:
    """Return the fields of the one request that writes back and moves the tag. A title that a user edited in the
    meantime stays."""
    values: dict[str, object] = {"tags": tags.after(current.tags)}
    if text is not None:
        values["content"] = text
    if title and current.title == record.title:
        values["title"] = title
    return values


def upload_name(name: str, sha256: str) -> str:
    """Return the file name of a searchable PDF, by which its task is found and `is_upload` knows it."""
    return f"{safe_stem(name)}.penstock-{sha256[:8]}.pdf"


def is_upload(name: str) -> bool:
    """Whether the connector uploaded this file. A workflow of paperless may give it the tag: it needs no second text
    layer."""
    return bool(_UPLOAD.search(name[-22:]))


def shortened(heading: str) -> str:
    """Return a heading as a title: on one line, and cut after a word if it has more than `MAX_TITLE` characters."""
    title = " ".join(heading.split())
    if len(title) <= MAX_TITLE:
        return title
    cut = title[: MAX_TITLE - 1]
    words = cut.rpartition(" ")[0]
    return f"{words if len(words) > MAX_TITLE // 2 else cut}…"
