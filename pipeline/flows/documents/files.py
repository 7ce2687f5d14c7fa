"""Where a document's files are, and writing them so that nobody ever sees half of one. Source 001, sections 7 and 9.2.

Paths are made of ids and fixed names; a user's file name is only ever the last part of an output, made safe.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from pipeline.engine.errors import UserError
from pipeline.reading.source import safe_filename
from pipeline.settings import Settings

PICTURES = "pictures"


def upload_folder(settings: Settings, document_id: str) -> Path:
    return settings.upload_dir / document_id


def source_path(settings: Settings, document_id: str, file_type: str) -> Path:
    """The stored copy of what was submitted."""
    return upload_folder(settings, document_id) / f"source.{file_type}"


def survey_path(settings: Settings, document_id: str) -> Path:
    """What the split stage found out about the whole document, for its pages."""
    return upload_folder(settings, document_id) / "survey.json"


def pictures_folder(settings: Settings, document_id: str) -> Path:
    """Pictures that stand on the pages, where they are wanted; beside the merged Markdown, which links to them."""
    return output_folder(settings, document_id) / PICTURES


def temp_folder(settings: Settings, document_id: str) -> Path:
    """Page images; goes when the document ends."""
    return settings.temp_dir / document_id


def output_folder(settings: Settings, document_id: str) -> Path:
    return settings.output_dir / document_id


def output_path(settings: Settings, document_id: str, filename: str) -> Path:
    """Where the merged Markdown goes."""
    return output_folder(settings, document_id) / f"{stem(filename)}.md"


def manifest_path(result: Path) -> Path:
    """The manifest that stands beside a result, Markdown or JSON."""
    return result.with_name(f"{result.name.removesuffix('.md').removesuffix('.json')}.manifest.json")


def stem(filename: str) -> str:
    """The name without its last ending, short enough for `.manifest.json` and a temporary suffix to follow."""
    return safe_filename(Path(safe_filename(filename)).stem)


@contextmanager
def incoming(settings: Settings, source: Path) -> Iterator[Path]:
    """A private copy of a submitted file, gone at the end unless it was moved to its place.

    Everything is decided on the copy: the original may change under our hands.
    """
    copy = settings.upload_dir / f"incoming-{uuid4().hex}"
    try:
        settings.upload_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copyfile(source, copy)
        yield copy
    except OSError as error:
        raise storage_error(error, source) from error
    finally:
        copy.unlink(missing_ok=True)


def storage_error(error: OSError, path: Path) -> UserError:
    """An error of the file system as one that says what to do."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return UserError(
            f"no space left on the disk while writing for {path}: free some and try again", code="disk_full"
        )
    if isinstance(error, PermissionError):
        return UserError(f"no permission: {error.filename or path}", code="permission")
    return UserError(f"{path}: {error.strerror or error}", code="io_error")


@contextmanager
def staged_text(path: Path, text: str) -> Iterator[Callable[[], None]]:
    """Write `text` beside `path` and yield a function that puts it in place in one step; else nothing is left.

    The caller may call it inside a database transaction, so that only whoever wins there replaces `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    temporary = Path(name)

    def place() -> None:
        with suppress(FileNotFoundError):  # a transaction that is tried again has placed it already
            temporary.replace(path)

    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        yield place
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a file in one step: all of it or none."""
    with staged_text(path, text) as place:
        place()


def remove(entry: Path) -> None:
    """Remove a file, or a folder with all that is in it; a link is removed, not followed."""
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink(missing_ok=True)


def remove_temp(settings: Settings, document_id: str) -> None:
    shutil.rmtree(temp_folder(settings, document_id), ignore_errors=True)


def remove_all(settings: Settings, document_id: str) -> None:
    """Everything of a document that was deleted."""
    for folder in (upload_folder, temp_folder, output_folder):
        shutil.rmtree(folder(settings, document_id), ignore_errors=True)
