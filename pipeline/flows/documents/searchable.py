"""A document's searchable PDF: the submitted file with the words of its result as invisible text, made on request.

It shares the cache and the allowed size of the pictures of pages.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from pipeline.engine.errors import ErrorKind, UnitError, UserError
from pipeline.flows.documents import files, queries
from pipeline.flows.documents.page_pictures import room
from pipeline.flows.documents.views import DocumentView, PageView
from pipeline.providers.protocols import PageReader, PageRef
from pipeline.reading.export.markdown import plain_text
from pipeline.reading.files.filetype import MIME_TYPES
from pipeline.reading.sandbox import child
from pipeline.reading.sandbox.limits import Limits, Wanted
from pipeline.settings import LOCAL
from pipeline.storage.context import Context

REVISION = 2
"""Raise this whenever the PDF changes: those of an earlier revision are then made anew."""

_PAGE_S, _TOTAL_S = 60.0, 3_600.0
_MOST_ADDED_BYTES = 512 * 2**20
Json = dict[str, Any]
Progress = Callable[[int, int], object]
"""Receives the number of pages whose places are known, and of all pages."""


def searchable_pdf(
    context: Context, document_id: str, wanted: Wanted = lambda: True, progress: Progress = lambda _done, _all: None
) -> Path:
    """Return the path of the document's searchable PDF, which a child process makes unless it is cached.

    Pages with a text layer of their own get no other. Recognises pages on this machine if a model read them, to place
    its words; calls `progress` after each page, and `wanted` twice a second. Raises `Unwanted` if that returns False,
    and `UserError` without a result or the stored file, for a file that is neither PDF nor picture, or if it cannot be
    read.
    """
    document = queries.document(context, document_id)
    path = _path(context, document)
    if path.exists():
        with suppress(OSError):
            path.touch()  # the least recently used go first
        return path
    source = files.source_path(context.settings, document_id, document.type)
    if not source.exists():
        raise UserError(f"the file of document {document_id} is not stored any more", code="no_picture")
    try:
        _make(context, document, source, path, wanted, progress)
    except UnitError as error:
        raise UserError(str(error), code=error.code) from error
    return path


def report(context: Context, document_id: str) -> Json:
    """Return what the document's searchable PDF contains, in the shape of `searchable.Report`; empty if none is
    cached."""
    try:
        known: Json = json.loads(
            _path(context, queries.document(context, document_id)).with_suffix(".json").read_bytes()
        )
    except (FileNotFoundError, ValueError):
        return {}
    return known


def _path(context: Context, document: DocumentView) -> Path:
    if document.type not in {"pdf"} | {name for name, mime in MIME_TYPES.items() if mime.startswith("image/")}:
        message = f"{document.filename} is neither a PDF nor a picture, so it has no searchable PDF"
        raise UserError(message, code="no_pages")
    # Merging sets the time of the end: a later result has another name.
    kept = context.settings.documents.keep_active_content
    state = f"{REVISION} {document.finished_at} {document.result_path} {kept}"
    tag = hashlib.sha256(state.encode()).hexdigest()[:16]
    return files.views_folder(context.settings, document.id) / f"searchable-{tag}.pdf"


def _make(
    context: Context, document: DocumentView, source: Path, path: Path, wanted: Wanted, progress: Progress
) -> None:
    texts = _texts(context, document, source, wanted, progress)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial, asked = (path.with_name(f".{path.stem}.{uuid4().hex}{suffix}") for suffix in (".pdf", ".json"))
    limits = Limits(
        timeout_s=_PAGE_S,
        total_s=_TOTAL_S,
        memory_mb=context.settings.documents.reader_memory_mb,
        max_chars=10_000_000,
        max_written_bytes=source.stat().st_size + _MOST_ADDED_BYTES,
    )
    task = {
        "task": "searchable",
        "path": str(source),
        "texts": str(asked),
        "target": str(partial),
        "keep_active": context.settings.documents.keep_active_content,
        "reads": [str(asked)],
        "writes": [str(path.parent)],
    }
    try:
        asked.write_text(json.dumps({"pages": texts}), encoding="utf-8", errors="replace")
        made = child.ask_about_file(task, document.filename, wanted, limits)
        # Before the file is in its place, or room for itself might be made at its expense.
        room.note(context.settings, partial.stat().st_size)
        path.with_suffix(".json").write_text(json.dumps(made), encoding="utf-8")
        partial.replace(path)
    finally:
        for file in (partial, asked):
            file.unlink(missing_ok=True)


def _texts(context: Context, document: DocumentView, source: Path, wanted: Wanted, progress: Progress) -> list[Json]:
    """Return, for each page that needs text, the JSON that `searchable.texts_of` reads."""
    views = [page for page in queries.pages(context, document.id) if page.content.strip()]
    known = queries.layouts(context, document.id)
    result: list[Json] = []
    with _reader(context, source) as read:
        for done, page in enumerate(views, 1):
            if not wanted():
                return result  # the next step raises `Unwanted`
            layout = known.get(page.page, {})
            if "lines" not in layout and not _from_text_layer(page, layout):
                layout = {"model": layout, **read(page.page_source)}
            if "lines" in layout and not ("model" in layout and _from_text_layer(None, layout)):
                result.append(_text(page, layout))
            progress(done, len(views))
    return result


def _from_text_layer(page: PageView | None, layout: Json) -> bool:
    """Whether local conversion took the page's text from a text layer, all of it or all but that of pictures."""
    recognised = "confidence" in layout or layout.get("lines") == []
    return bool(layout) and (page is None or page.provider == LOCAL) and not recognised


def _text(page: PageView, layout: Json) -> Json:
    width, height = layout["width"], layout["height"]
    other = page.provider != LOCAL and ("model" in layout)
    model = layout.get("model") or {}
    boxes = []
    if other and model.get("width") and model.get("height"):
        across, down = width / model["width"], height / model["height"]
        boxes = [
            (block["text"], [side * (down if at % 2 else across) for at, side in enumerate(block["bbox"])])
            for block in model.get("blocks", ())
            if block.get("bbox") and block["text"].strip()
        ]
    return {
        "number": page.page_source,
        "width": width,
        "height": height,
        "lean": layout.get("lean", 0.0),
        "lines": layout["lines"],
        "text": plain_text(page.content) if other else None,
        "boxes": boxes,
    }


@contextmanager
def _reader(context: Context, source: Path) -> Iterator[Callable[[int], Json]]:
    """Yield a function that converts a page of the file on this machine, and returns its layout. The cache keeps it."""
    from pipeline.providers.local import LocalConverter  # noqa: PLC0415  # which imports PDFium and Pillow

    folder = files.views_folder(context.settings, source.parent.name)
    with LocalConverter(context.settings).open(source) as reader:
        yield lambda number: _layout(reader, source, number, folder / f"lines-{number:05d}.json")


def _layout(reader: PageReader, source: Path, number: int, cached: Path) -> Json:
    with suppress(FileNotFoundError, ValueError):
        known: Json = json.loads(cached.read_bytes())
        return known
    try:
        layout = reader.convert(PageRef(source, number)).layout or {}
    except UnitError as error:
        if error.kind is not ErrorKind.PERMANENT:
            raise
        layout = {"width": 595.0, "height": 842.0, "lines": []}  # too much for recognition: text without places
    kept: Json = {
        name: layout[name] for name in ("width", "height", "unit", "lines", "lean", "confidence") if name in layout
    }
    cached.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    cached.write_text(json.dumps(kept), encoding="utf-8")
    return kept
