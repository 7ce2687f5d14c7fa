"""What a child process does for `child`, by the task's name. Each answers with an object that JSON can hold."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.engine.errors import UnitError, UserError
from pipeline.reading import audio_tags, extraction, images, pdfium, screen_tasks, source
from pipeline.reading.content import Reading, Task, check_characters


def _file(task: Task) -> dict[str, Any]:
    return _as_message(extraction.extract_file(task.path, task["name"], task.limits, task.progress), task)


def _page(task: Task) -> dict[str, Any]:
    return _as_message(extraction.extract_page(task.path, task["name"], task["charset"], task.limits), task)


def _as_message(reading: Reading, task: Task) -> dict[str, Any]:
    check_characters(sum(len(section.text) for section in reading.sections), task["name"], task.limits)
    sections = [[section.text, section.page, section.source, section.plain] for section in reading.sections]
    return {"title": reading.title[:500], "sections": sections, "warnings": reading.warnings[:100]}


@dataclass(frozen=True)
class _Size:
    """`source.Limits` as they were told."""

    max_upload_mb: int
    max_pages: int
    max_page_points: float


def _inspect(task: Task) -> dict[str, Any]:
    try:
        return asdict(source.inspect(task.path, _Size(**task["size"])))
    except UserError as error:
        raise UnitError(str(error), code=error.code) from error


def _render(task: Task) -> dict[str, Any]:
    path, number = task.path, int(task["page"])
    if task["type"] != "pdf":
        picture = images.load_picture(path, number, task["max_pixels"])
    else:
        with pdfium.open_document(path) as document, document.page(number) as page:
            picture = page.render(task["dpi"], task["max_pixels"])
    images.save(picture, Path(task["target"]), "PNG", compress_level=6)
    return {"done": True}


def _tags(task: Task) -> dict[str, Any]:
    return audio_tags.tags_of(task.path)


TASKS: Mapping[str, Callable[[Task], dict[str, Any]]] = {
    "file": _file, "inspect": _inspect, "page": _page, "render": _render, "tags": _tags,
    **screen_tasks.TASKS,
}  # fmt: skip
