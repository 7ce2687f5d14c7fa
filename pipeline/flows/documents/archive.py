"""A document's result as one ZIP archive, made as it is sent: Markdown, the pictures it links to, blocks, manifest."""

import json
import zipfile
from collections.abc import Iterator, Sequence
from io import RawIOBase
from pathlib import Path
from typing import Any

from pipeline.engine.errors import UserError
from pipeline.flows.documents import files, queries
from pipeline.flows.documents.views import DocumentView
from pipeline.reading.files.inputs import manifest_path
from pipeline.storage.context import Context

_PIECE = 2**18
_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp"}
_HIDDEN = ("merged_path", "source_path", "worker_id")


def name(filename: str) -> str:
    """What the archive of a file's result is called."""
    return f"{files.stem(filename)}.zip"


def archive(context: Context, document_id: str) -> Iterator[bytes]:
    """The archive, piece by piece. Raises `UserError` at once if there is no result."""
    document = queries.document(context, document_id)
    merged = result_path(document)
    stem = files.stem(document.filename)
    return _zipped(_contents(context, document, merged, stem))


def result_path(document: DocumentView) -> Path:
    """The merged Markdown. Raises `UserError` if there is none."""
    path = Path(document.merged_path) if document.merged_path else None
    if path is None or not path.is_file():
        raise UserError(f"document {document.id} has no result: it is {document.status.name}", code="no_result")
    return path


def manifest(document: DocumentView) -> dict[str, Any] | None:
    """What the manifest says, without paths and workers of this machine; None if there is none."""
    path = manifest_path(Path(document.merged_path)) if document.merged_path else None
    if path is None or not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_bytes())
    for hidden in _HIDDEN:
        found["document"].pop(hidden, None)
    for page in found["pages"]:
        for attempt in page["attempts"]:
            attempt.pop("worker_id", None)
    return found


def pictures_folder(context: Context, document_id: str) -> Path | None:
    """The folder of the pictures that a document's Markdown links to; None if there are none."""
    folder = files.pictures_folder(context.settings, document_id)
    return folder if folder.is_dir() else None


def pictures(folder: Path | None) -> Sequence[Path]:
    """The pictures in a result's folder, by name."""
    return sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES) if folder and folder.is_dir() else []


def _contents(context: Context, document: DocumentView, merged: Path, stem: str) -> Iterator[tuple[str, bytes | Path]]:
    """The names of the files and what is in them. One at a time is in memory."""
    yield f"{stem}.md", merged
    for path in pictures(files.pictures_folder(context.settings, document.id)):
        if path.is_file() and not path.is_symlink():
            yield f"{files.PICTURES}/{path.name}", path
    if (facts := manifest(document)) is not None:
        yield f"{stem}.manifest.json", json.dumps(facts, indent=2, ensure_ascii=False).encode()
    yield f"{stem}.json", json.dumps(queries.layout_json(context, document.id), ensure_ascii=False).encode()


class _Pieces(RawIOBase):
    """Collects what is written until it is taken away."""

    def __init__(self) -> None:
        super().__init__()
        self._written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._written += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._written)
        self._written.clear()
        return taken


def _zipped(contents: Iterator[tuple[str, bytes | Path]]) -> Iterator[bytes]:
    sink = _Pieces()
    with zipfile.ZipFile(sink, "w") as made:
        for named, content in contents:
            # Pictures are compressed already.
            how = zipfile.ZIP_STORED if Path(named).suffix in _SUFFIXES else zipfile.ZIP_DEFLATED
            info = zipfile.ZipInfo(named)
            info.compress_type, info.external_attr = how, 0o600 << 16
            with made.open(info, "w", force_zip64=True) as target:
                for piece in _pieces(content):
                    target.write(piece)
                    if taken := sink.take():
                        yield taken
    yield sink.take()


def _pieces(content: bytes | Path) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield from (content[at : at + _PIECE] for at in range(0, len(content), _PIECE))
        return
    with content.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece
