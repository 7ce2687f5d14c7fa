"""Pictures of pages for people to look at, made when somebody asks, and kept for a day in the temp folder."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

from pipeline.engine.errors import UserError
from pipeline.flows.documents import files, queries
from pipeline.reading import inspection
from pipeline.reading.filetype import FileType
from pipeline.storage.context import Context

MIN_DPI, MAX_DPI = 36, 200


def picture(context: Context, document_id: str, number: int, dpi: float, wanted: Callable[[], bool]) -> bytes:
    """A PNG of a page as it is in the file, with the settings' `max_pixels` at most.

    Rendered in a child process. Raises `UserError`: there is no such page, or it cannot be rendered.
    """
    document, page = queries.document(context, document_id), queries.page(context, document_id, number)
    dpi = round(min(MAX_DPI, max(MIN_DPI, dpi)))  # in this order: there is no rounding what is not a number
    # With the temp folder's pages: it goes with them, and clean-up finds it by the document's id.
    target = files.temp_folder(context.settings, document_id) / "view" / f"page-{page.page_source:05d}-{dpi}.png"
    if (kept := _kept(target)) is not None:
        return kept
    source = files.source_path(context.settings, document_id, document.type)
    if not source.exists():
        raise UserError(f"the file of document {document_id} is not stored any more", code="no_picture")
    limit = context.settings.documents.max_pixels
    kind = cast("FileType", document.type)
    inspection.render(source, document.filename, kind, page.page_source, target, dpi, limit, wanted)
    made = _kept(target)
    if made is None:
        raise UserError(f"page {number} of document {document_id} cannot be shown now", code="no_picture")
    return made


def _kept(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
