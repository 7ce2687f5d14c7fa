"""Inspect a stranger's document in a child process: whether it can be converted, and pictures of its pages.

PDFium and Pillow read a stranger's file; if it crashes them or exhausts memory, only the child ends.
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from pipeline.engine import privacy
from pipeline.engine.errors import UnitError, UserError
from pipeline.reading.files import source
from pipeline.reading.files.filetype import PageType
from pipeline.reading.files.source import SourceInfo
from pipeline.reading.sandbox import child
from pipeline.reading.sandbox.limits import Limits, Wanted

_CAPS = Limits(timeout_s=60, total_s=600, memory_mb=1_500)
"""`timeout_s` is for one frame of a picture: a scanned book in one TIFF file may take more than a minute."""


def inspect(path: Path, name: str, limits: source.Limits, wanted: Wanted = lambda: True) -> SourceInfo:
    """Check a file in a child; return its type, pages and size.

    Raises `Unwanted`, or `UserError`: a code of `source_check.inspect`; `too_slow`, `too_large` or `unreadable_file` if
    the file is too much for the child; `no_reader` or `reader_killed`, which say nothing about the file: retry. Errors
    call the file `name`, but some about access show its path.
    """
    source.check_file(path, limits, name)
    size = {name: getattr(limits, name) for name in ("max_upload_mb", "max_pages", "max_page_points")}
    facts = _run({"task": "inspect", "path": str(path.absolute()), "size": size}, name, wanted)
    return SourceInfo(cast("PageType", facts["type"]), int(facts["pages"]), int(facts["size_bytes"]))


def decrypt(path: Path, name: str, limits: source.Limits, password: str, wanted: Wanted = lambda: True) -> None:
    """Let a child replace our private copy of a PDF by one that needs no password, if it needs this one. Any other file
    stays as it is.

    Raises `UserError` with code `wrong_password`, and like `inspect`.
    """
    if source.check_file(path, limits, name) != "pdf":
        return
    target = path.with_name(f"incoming-{uuid4().hex}")
    written = str(target.absolute())
    task = {"task": "decrypt", "path": str(path.absolute()), "target": written, "writes": [written]}
    caps = replace(_CAPS, max_written_bytes=limits.max_upload_mb * 1_000_000)
    try:
        target.touch(privacy.PRIVATE_FILE, exist_ok=False)
        if _run({**task, "password": password}, name, wanted, caps, secret=True)["needed"]:
            target.replace(path)
    except UserError as error:
        if error.code == "encrypted":
            raise UserError(f"The password does not open {name}.", code="wrong_password") from None
        raise
    finally:
        target.unlink(missing_ok=True)


def render(
    path: Path,
    name: str,
    file_type: PageType,
    number: int,
    target: Path,
    dpi: float,
    max_pixels: int,
    wanted: Wanted = lambda: True,
    *,
    width: int = 0,
    gentle: bool = False,
) -> None:
    """Render page `number` (from 1) of a file in a child, and write it to `target` whole or not at all: as WebP if that
    is the suffix, otherwise as PNG.

    A PDF page has `dpi` dots per inch, or with `width` at most `width` pixels across; a picture file only shrinks.
    `gentle`: use a child of low priority. Raises `Unwanted`, or `UserError` if the page is missing, damaged or too much
    for the child.
    """
    folder = target.parent
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    task = {
        "task": "render",
        "path": str(path.absolute()),
        "type": file_type,
        "page": number,
        "target": str(target.absolute()),
        "writes": [str(folder.absolute())],
        "dpi": dpi,
        "width": width,
        "max_pixels": max_pixels,
    }
    try:
        _run(task, name, wanted, gentle=gentle)
    except BaseException:
        with suppress(OSError):  # another page's picture is there
            for parent in made:
                parent.rmdir()
        raise


def _run(
    task: dict[str, Any],
    name: str,
    wanted: Wanted,
    caps: Limits | None = None,
    *,
    gentle: bool = False,
    secret: bool = False,
) -> dict[str, Any]:
    try:
        return child.ask_about_file(task, name, wanted, caps or _CAPS, gentle=gentle, secret=secret)
    except UnitError as error:
        raise UserError(str(error), code=error.code) from error
