"""Tasks of child processes on documents, by name."""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.engine.errors import UnitError, UserError
from pipeline.reading.ocr import images
from pipeline.reading.ocr.rendition import Rendition
from pipeline.reading.pdf import conversion, pdfium, source_check
from pipeline.reading.pdf.pages import NOT_OPEN, Options
from pipeline.reading.sandbox.limits import Task, check_characters, refused

_MAX_DPI = 400
_MAX_WEBP = 16_383
"""The longest side of a WebP picture."""


@dataclass(frozen=True)
class _Size:
    """The `source.Limits` of a task."""

    max_upload_mb: int
    max_pages: int
    max_page_points: float


def _inspect(task: Task) -> dict[str, Any]:
    try:
        return asdict(source_check.inspect(task.path, _Size(**task["size"]), task.progress))
    except UserError as error:
        raise UnitError(str(error), code=error.code) from error


def _decrypt(task: Task) -> dict[str, Any]:
    """Write a copy of a PDF without its password to `target`; write nothing if it opens without one."""
    from pipeline.reading.pdf import passwords  # noqa: PLC0415  (pikepdf takes 6 MB)

    return {"needed": passwords.save_decrypted(task.path, Path(task["target"]), task["password"])}


def _render(task: Task) -> dict[str, Any]:
    path, number, width, target = task.path, int(task["page"]), task["width"], Path(task["target"])
    if task["type"] != "pdf":
        picture = images.load_picture(path, number, task["max_pixels"])
    else:
        with pdfium.open_document(path) as document, document.page(number) as page:
            dpi = min(_MAX_DPI, 72 * width / max(page.size[0], 1)) if width else task["dpi"]
            picture = page.render(dpi, task["max_pixels"])
    if width and picture.width > width:
        picture.thumbnail((width, picture.height), reducing_gap=3.0)
    if target.suffix == ".webp":
        picture.thumbnail((_MAX_WEBP, _MAX_WEBP))
        images.save(picture, target, "WEBP", quality=80, method=0)
    else:
        images.save(picture, target, "PNG", compress_level=6)
    return {"done": True}


class _Opened:
    """The document that this process has open for a session; the latest one only."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._key = ""
        self._source: conversion.PageSource

    def open(self, key: str, task: Task) -> None:
        self._stack.close()
        self._key = ""
        options = Options(**task["options"])
        self._source = self._stack.enter_context(conversion.open_source(task.path, options, task["survey"]))
        self._key = key

    def source(self, key: str) -> conversion.PageSource:
        if key != self._key:
            raise refused("The document is not open.", NOT_OPEN)
        return self._source


_opened = _Opened()


def _open(task: Task) -> dict[str, Any]:
    _opened.open(task["key"], task)
    return {"done": True}


def _convert(task: Task) -> dict[str, Any]:
    image, folder, second = (Path(task[name]) if task[name] else None for name in ("image", "pictures", "second"))
    second = second and Path(task["scratch"]) / second
    page = _opened.source(task["key"]).convert(task["page"], image, folder, second)
    check_characters(len(page.text), task["name"], task.limits)
    return page._asdict()


def _picture(task: Task) -> dict[str, Any]:
    source, folder = _opened.source(task["key"]), Path(task["folder"])
    rendition = Rendition.of(task["rendition"])
    return {"path": str(source.render(task["page"], folder, rendition, task["max_pixels"]))}


def _survey(task: Task) -> dict[str, Any]:
    pages = [number for first, last in task["pages"] for number in range(first, last + 1)]
    options = Options(**task["options"])
    return {"survey": conversion.survey(task.path, pages, options, lambda: task.progress(0.0))}


def _searchable(task: Task) -> dict[str, Any]:
    from pipeline.reading.pdf import searchable  # noqa: PLC0415  (pikepdf takes 6 MB)

    texts = searchable.texts_of(json.loads(Path(task["texts"]).read_bytes()))
    keep_active = task["keep_active"]
    return searchable.write(task.path, Path(task["target"]), texts, task.progress, keep_active=keep_active)._asdict()


TASKS: Mapping[str, Callable[[Task], dict[str, Any]]] = {
    "convert": _convert,
    "decrypt": _decrypt,
    "inspect": _inspect,
    "open": _open,
    "picture": _picture,
    "render": _render,
    "searchable": _searchable,
    "survey": _survey,
}
