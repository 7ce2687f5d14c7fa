"""The places of a document's files. Rules: docs/sources/documents.md#cleanup.

Paths consist of ids and fixed names. Only the last part of an output path contains the user's file name, made safe.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from pipeline.reading.files.source import safe_stem
from pipeline.reading.files.user_file import open_file, storage_error
from pipeline.settings import Settings

PICTURES = "pictures"
_PIECE = 2**20


def upload_folder(settings: Settings, document_id: str) -> Path:
    return settings.upload_dir / document_id


def source_path(settings: Settings, document_id: str, file_type: str) -> Path:
    """Return the path of the stored copy of the submitted file."""
    return upload_folder(settings, document_id) / f"source.{file_type}"


def survey_path(settings: Settings, document_id: str) -> Path:
    """Return the path of the document's profile, such as the levels of its headings, which splitting stores and the
    local conversion of each page reads."""
    return upload_folder(settings, document_id) / "survey.json"


def temp_folder(settings: Settings, document_id: str) -> Path:
    """Return the folder of the pages' images for providers, which are removed when the document ends."""
    return settings.temp_dir / document_id


def views_folder(settings: Settings, document_id: str) -> Path:
    """Return the folder that caches the pictures of whole pages that interfaces have shown."""
    return settings.view_dir / document_id


def output_folder(settings: Settings, document_id: str) -> Path:
    return settings.output_dir / document_id


def pictures_folder(settings: Settings, document_id: str) -> Path:
    """Return the folder of figures cut from the pages, which exists only if the user asked for them; the merged
    Markdown links to them."""
    return output_folder(settings, document_id) / PICTURES


def output_path(settings: Settings, document_id: str, filename: str) -> Path:
    """Return the path of the merged Markdown, which may not exist yet."""
    return output_folder(settings, document_id) / f"{safe_stem(filename)}.md"


@contextmanager
def incoming(settings: Settings, source: Path) -> Iterator[Path]:
    """Yield a private copy of a submitted file, and remove it at the end unless it was moved.

    All checks read the copy, because the original may change at any time. Of a file over the limit of uploads, only one
    byte more than the limit is copied, so that the checks refuse it. Raises `UserError` in place of any `OSError`.
    """
    copy = settings.upload_dir / f"incoming-{uuid4().hex}"
    try:
        settings.upload_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        # One byte over the limit is enough to refuse the file, and a growing file must not be copied for ever.
        _copy(source, copy, settings.documents.max_upload_mb * 1_000_000 + 1)
        yield copy
    except OSError as error:
        raise storage_error(error, source) from error
    finally:
        copy.unlink(missing_ok=True)


def _copy(source: Path, copy: Path, max_bytes: int) -> None:
    """Copy a file's first `max_bytes`. Raises `OSError`, also for a device, a pipe or a folder."""
    with open_file(source) as file, copy.open("xb") as target:
        while max_bytes and (piece := file.read(min(max_bytes, _PIECE))):
            max_bytes -= target.write(piece)


def place(copy: Path, path: Path) -> None:
    """Move a private copy to its permanent path, and make the folder; replace a file that is there."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    copy.replace(path)


def remove(entry: Path) -> None:
    """Remove a file, or a folder with its contents; remove a link without following it."""
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink(missing_ok=True)


def remove_temp(settings: Settings, document_id: str) -> None:
    shutil.rmtree(temp_folder(settings, document_id), ignore_errors=True)


def remove_all(settings: Settings, document_id: str) -> None:
    """Remove the folders of a deleted document: the submitted file, page images, results and shown pictures."""
    for folder in (upload_folder, temp_folder, output_folder, views_folder):
        shutil.rmtree(folder(settings, document_id), ignore_errors=True)
