"""A document's result as a ZIP stream: Markdown, the pictures that it links to, blocks and manifest."""

import json
import zipfile
from collections.abc import Iterator
from io import RawIOBase
from itertools import chain
from pathlib import Path
from typing import Any

from pipeline.engine.errors import UserError
from pipeline.flows.documents import files, outputs, queries
from pipeline.flows.documents.views import DocumentView
from pipeline.reading.export.formats import Format
from pipeline.reading.files.inputs import manifest_path
from pipeline.reading.files.source import safe_stem
from pipeline.storage.context import Context

_Content = bytes | Path | Iterator[bytes]
_PIECE = 2**18
_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp"}
_HIDDEN = ("merged_path", "source_path", "worker_id")


def archive(context: Context, document_id: str, *, split: bool = False, tables: bool = False) -> Iterator[bytes]:
    """Return an iterator over the bytes of the ZIP archive, which it makes as it goes. `split`: with the Markdown of
    each page as a file; `tables`: with each table as CSV.

    Raises `UserError` at once if the document is unknown or has no result.
    """
    document = queries.document(context, document_id)
    stem = safe_stem(document.filename)
    return _zipped(
        chain(
            _contents(context, document, document.result_path, stem),
            _pages(context, document_id, stem) if split else (),
            _tables(context, document_id, stem) if tables else (),
        )
    )


def manifest(context: Context, document_id: str) -> dict[str, Any]:
    """Return the stored manifest as a dict, without this machine's paths and workers. Raises `UserError` for an unknown
    document, or without a result or a manifest."""
    content = _manifest(queries.document(context, document_id).result_path)
    if content is None:
        raise UserError(f"document {document_id} has no manifest", code="no_result")
    return content


def _manifest(merged: Path) -> dict[str, Any] | None:
    path = manifest_path(merged)
    if not path.is_file():
        return None
    manifest: dict[str, Any] = json.loads(path.read_bytes())
    for hidden in _HIDDEN:
        manifest["document"].pop(hidden, None)
    for page in manifest["pages"]:
        for attempt in page["attempts"]:
            attempt.pop("worker_id", None)
    return manifest


def pictures_folder(context: Context, document_id: str) -> Path | None:
    """Return the folder of the pictures that a document's Markdown links to; None if there are none, as for an unknown
    document."""
    folder = files.pictures_folder(context.settings, document_id)
    return folder if folder.is_dir() and any(folder.iterdir()) else None


def _contents(context: Context, document: DocumentView, merged: Path, stem: str) -> Iterator[tuple[str, _Content]]:
    """Yield (name, content) of each file, so that memory holds one file at a time."""
    yield f"{stem}.md", merged
    folder = pictures_folder(context, document.id)
    for path in sorted(folder.iterdir()) if folder else ():
        if path.suffix in _SUFFIXES and path.is_file() and not path.is_symlink():
            yield f"{files.PICTURES}/{path.name}", path
    if (facts := _manifest(merged)) is not None:
        yield f"{stem}.manifest.json", json.dumps(facts, indent=2, ensure_ascii=False).encode()
    yield f"{stem}.json", (piece.encode() for piece in outputs.content(context, document.id, Format.JSON))


def _pages(context: Context, document_id: str, stem: str) -> Iterator[tuple[str, bytes]]:
    for number, content in outputs.by_page(context, document_id, Format.MD):
        linked = content.replace(f"]({files.PICTURES}/".encode(), f"](../{files.PICTURES}/".encode())
        yield f"{stem}.pages/{stem}-{number:04d}.md", linked


def _tables(context: Context, document_id: str, stem: str) -> Iterator[tuple[str, bytes]]:
    for page, number, content in outputs.tables_as_csv(context, document_id):
        yield f"{stem}.tables/{stem}-p{page:04d}-{number}.csv", content


class _Pieces(RawIOBase):
    """Collects written bytes until `take` removes them."""

    def __init__(self) -> None:
        super().__init__()
        self._written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._written += data
        return len(data)

    def take(self) -> bytes:
        piece = bytes(self._written)
        self._written.clear()
        return piece


def _zipped(contents: Iterator[tuple[str, _Content]]) -> Iterator[bytes]:
    sink = _Pieces()
    with zipfile.ZipFile(sink, "w") as archive_file:
        for named, content in contents:
            # Pictures are compressed already.
            method = zipfile.ZIP_STORED if Path(named).suffix in _SUFFIXES else zipfile.ZIP_DEFLATED
            info = zipfile.ZipInfo(named)
            info.compress_type, info.external_attr = method, 0o600 << 16
            with archive_file.open(info, "w", force_zip64=True) as target:
                for piece in _pieces(content):
                    target.write(piece)
                    if ready := sink.take():
                        yield ready
    yield sink.take()


def _pieces(content: _Content) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield from (content[at : at + _PIECE] for at in range(0, len(content), _PIECE))
        return
    if not isinstance(content, Path):
        yield from content
        return
    with content.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece
