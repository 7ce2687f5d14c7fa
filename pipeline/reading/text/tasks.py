"""Tasks of child processes that turn files and web pages into text, by name."""

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.reading.replies import markup
from pipeline.reading.sandbox.limits import Task, check_characters
from pipeline.reading.text import audio_tags, extraction, units, zip_archive
from pipeline.reading.text.content_type import DECODED, kind_of, text_type
from pipeline.reading.text.sections import Reading


def _file(task: Task) -> dict[str, Any]:
    return _as_message(extraction.extract_file(task.path, task["name"], task.limits, task.progress), task)


def _page(task: Task) -> dict[str, Any]:
    return _as_message(extraction.extract_page(task.path, task["name"], task["charset"], task.limits), task)


def _as_message(reading: Reading, task: Task) -> dict[str, Any]:
    check_characters(sum(len(section.text) for section in reading.sections), task["name"], task.limits)
    sections = [[section.text, section.page, section.source, section.plain] for section in reading.sections]
    return {"title": reading.title[:500], "sections": sections, "warnings": reading.warnings[:100]}


def _tags(task: Task) -> dict[str, Any]:
    return audio_tags.tags_of(task.path)


def _units(task: Task) -> dict[str, Any]:
    """Return the type of a file, None if it is not accepted as a document, and the texts of its pages."""
    name = task["name"]
    kind = kind_of(task.path, name, task.limits)
    accepted = text_type(kind, name)
    if accepted is None:
        return {"type": None, "pages": []}
    reading = extraction.read_text(kind, task.path.read_bytes(), name, task.limits)
    check_characters(sum(len(section.text) for section in reading.sections), name, task.limits)
    pages: list[str] = []
    for section in reading.sections:
        # A document's text is Markdown, and a cut may lie within code, whose rest then begins a page.
        text = markup.fenced(section.text) if section.plain and kind not in DECODED else section.text
        parts = units.parted(text)
        pages += parts if len(parts) == 1 or kind in DECODED else [extraction.harmless(part, kind) for part in parts]
    return {"type": accepted, "pages": pages}


TASKS: Mapping[str, Callable[[Task], dict[str, Any]]] = {
    "file": _file,
    "page": _page,
    "tags": _tags,
    "units": _units,
    "unpack": zip_archive.unpack,
}
