"""An item's text, its stored file, and pictures of its pages."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from pipeline.engine.errors import UserError
from pipeline.flows.knowledge import files
from pipeline.flows.knowledge.models import CHUNKS, ITEMS
from pipeline.flows.knowledge.queries import UnknownItem
from pipeline.flows.knowledge.views import Original, TextView, heading_of
from pipeline.reading.files.filetype import detect_file
from pipeline.reading.pdf import inspection
from pipeline.storage.context import Context

MAX_CHARS = 1_000_000
"""The most characters of one answer."""
_BLANK = 2
"""Characters between two chunks that are too few for a heading."""


def text(context: Context, item_id: str, *, start: int = 0, limit: int = 100_000) -> TextView:
    """Return an item's published text from position `start` on, over at most `limit` positions and `MAX_CHARS`.

    The text is its chunks without their overlaps, with the headings above them. Positions are those of chunks: a
    heading may make the text longer than `limit`. Raises `UnknownItem`.
    """
    with context.db.read() as session:
        row = _row(session, item_id)
        published = (CHUNKS.c.item_id == item_id, CHUNKS.c.generation == row.generation)
        total = int(session.execute(select(func.max(CHUNKS.c.end)).where(*published)).scalar() or 0)
        end = min(start + min(limit, MAX_CHARS), total)
        within = (CHUNKS.c.end > start, CHUNKS.c.start < end)
        columns = (CHUNKS.c.text, CHUNKS.c.start, CHUNKS.c.end, CHUNKS.c.heading)
        pieces: list[str] = []
        above: Sequence[str] = ()
        at = start
        for chunk in session.execute(select(*columns).where(*published, *within).order_by(CHUNKS.c.number)):
            heading = heading_of(chunk.heading)
            if chunk.start > at:
                pieces += ["\n\n" if pieces else "", _headings(above, heading) if chunk.start - at > _BLANK else ""]
            begin = max(at, chunk.start)
            pieces.append(chunk.text[begin - chunk.start : end - chunk.start])
            at, above = max(at, chunk.end), heading
    return TextView("".join(pieces), min(start, total), max(end, min(start, total)), total)


def _headings(above: Sequence[str], below: Sequence[str]) -> str:
    """Return, as Markdown, the headings of path `below` after the beginning that it shares with path `above`; paths
    start with the outermost heading.

    Only for gaps where `split` dropped a chunk of mere headings: other texts have theirs.
    """
    shared = next((at for at, pair in enumerate(zip(above, below, strict=False)) if pair[0] != pair[1]), len(above))
    return "".join(f"{'#' * level} {name}\n\n" for level, name in enumerate(below, 1) if level > shared)


def original(context: Context, item_id: str) -> Original:
    """Return the stored copy of an item's file or note. Raises `UnknownItem`, and `UserError` without a copy."""
    with context.db.read() as session:
        row = _row(session, item_id)
    path = files.stored_path(context.settings, row.id, row.content_sha256) if row.content_sha256 else None
    if path is None or not path.is_file():
        raise UserError(f"no copy of {row.name} is stored: reading it fetches it again", code="no_result")
    return Original(path, row.name)


def has_page_pictures(context: Context, item_id: str) -> bool:
    """Whether pages of the item can be shown as pictures: whether its stored copy is a PDF or a picture. False for an
    unknown item."""
    try:
        return detect_file(original(context, item_id).path) is not None
    except UserError:
        return False


def page_picture(
    context: Context, item_id: str, page: int, width: int = 1000, wanted: Callable[[], bool] = lambda: True
) -> bytes:
    """Return a page of the stored copy, by its number from 1, as a WebP of at most this width. A child process of low
    priority renders it, and calls `wanted` twice a second.

    Raises `UnknownItem`, `Unwanted` if `wanted` returns False, `UserError` without the copy or the page, or if it
    cannot be rendered.
    """
    stored = original(context, item_id)
    kind = detect_file(stored.path)
    if kind is None:
        raise UserError(f"{stored.name} has no pages to show", code="no_picture")
    with tempfile.TemporaryDirectory(prefix="incoming-", dir=files.root(context.settings)) as folder:
        target, limit = Path(folder) / "page.webp", context.settings.documents.max_pixels
        inspection.render(stored.path, stored.name, kind, page, target, 100, limit, wanted, width=width, gentle=True)
        return target.read_bytes()


def _row(session: Session, item_id: str) -> Any:
    row = session.execute(select(ITEMS).where(ITEMS.c.id == item_id)).one_or_none()
    if row is None:
        raise UnknownItem(item_id)
    return row
