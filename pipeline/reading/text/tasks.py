"""Tasks of child processes that turn files and web pages into text, by name."""

from collections.abc import Callable, Mapping
from typing import Any

from pipeline.reading.sandbox.limits import Task, check_characters
from pipeline.reading.text import audio_tags, extraction
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


TASKS: Mapping[str, Callable[[Task], dict[str, Any]]] = {"file": _file, "page": _page, "tags": _tags}
