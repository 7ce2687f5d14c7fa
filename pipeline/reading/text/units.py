"""The pages of documents of all types.

Files that hold their text are read whole, in a child. A slide, a sheet and a chapter of a book are pages; any other
text is one page, or several if it is very long.
"""

import json
import re
from pathlib import Path

from pipeline.engine.errors import UnitError, UserError
from pipeline.reading.files import source
from pipeline.reading.files.filetype import TEXT_TYPES
from pipeline.reading.files.source import SourceInfo
from pipeline.reading.pdf import inspection
from pipeline.reading.sandbox import child
from pipeline.reading.sandbox.limits import MAX_PAGE_CHARS, Wanted
from pipeline.reading.text.text_files import text_limits

REVISION = 2
"""Raise this whenever the reading of these files changes: stored texts of an earlier revision are then read anew."""

_TABLE_HEAD = re.compile(r"\|[^\n]*\n\|(?: -{3,} \|)+\n")


def inspect(path: Path, name: str, limits: source.Limits, wanted: Wanted = lambda: True) -> SourceInfo:
    """Check a file of any type, called `name`, in a child; return its type, pages and size, and the texts of its pages
    if it holds text.

    Raises `Unwanted`, or `UserError` with a code of `inspection.inspect` or `text_files.read_file`.
    """
    if source.check_file(path, limits, name) is not None:
        return inspection.inspect(path, name, limits, wanted)
    try:
        facts = child.ask_about_file({"task": "units", "path": str(path.absolute())}, name, wanted, text_limits(path))
    except UnitError as error:
        raise UserError(str(error), code=error.code) from error
    if facts["type"] is None:
        raise source.unsupported(name)
    pages = facts["pages"]
    source.check_page_count(name, len(pages), limits)
    return SourceInfo(facts["type"], len(pages), path.stat().st_size, stored(pages))


def read(path: Path, wanted: Wanted) -> str:
    """Return the texts of an accepted file's pages, as `SourceInfo.texts`. `path` has the suffix of its type. Raises
    `Unwanted` or `UnitError`."""
    task = {"task": "units", "path": str(path.absolute())}
    facts = child.ask_about_file(task, path.name, wanted, text_limits(path))
    return stored(facts["pages"])


def stored(pages: list[str]) -> str:
    return json.dumps({"revision": REVISION, "pages": pages}, ensure_ascii=False)


def pages_in(texts: str) -> list[str]:
    """Return the texts of the pages in `SourceInfo.texts`; none if it is empty or of another revision."""
    facts = json.loads(texts) if texts else {}
    return list(facts["pages"]) if facts.get("revision") == REVISION else []


def holds_text(path: Path) -> bool:
    """Whether a stored file, whose suffix is its type, holds its text."""
    return path.suffix.removeprefix(".") in TEXT_TYPES


def parted(text: str, most: int = MAX_PAGE_CHARS) -> list[str]:
    """Return the text in parts of at most `most` characters, cut between paragraphs, else lines or words, else
    anywhere. A part that begins within a table repeats the table's head."""
    parts, begin, head = [], 0, ""
    while len(head) + len(text) - begin > most:
        end = begin + most - len(head)
        cuts = ((text.rfind(gap, begin + most // 2, end), gap) for gap in ("\n\n", "\n", " "))
        cut, gap = next((found for found in cuts if found[0] > 0), (end, ""))
        parts.append(head + text[begin:cut])
        match = _TABLE_HEAD.match(text, text.rfind("\n\n", 0, cut) + 2 if "\n\n" in text[:cut] else 0)
        head = match[0] if match and gap == "\n" and match.end() < cut and len(match[0]) < most // 4 else ""
        begin = cut + len(gap)
    return [*parts, head + text[begin:]]
