"""Results of documents as files."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from pipeline.flows.documents.files import PICTURES, manifest_path, write_text
from pipeline.interfaces.cli.command import Format

if TYPE_CHECKING:
    from tasks.documents import Document


def text_of(document: "Document", form: Format, pictures: str = "") -> str:
    """The result as one text; `pictures`: the folder that its links name, if any.

    Raises `UserError` if there is no result yet."""
    text = document.read_text()
    if form is not Format.MD:
        made = document.layout() if form is Format.JSON else document.docling()
        return json.dumps(made, indent=2, ensure_ascii=False) + "\n"
    return text.replace(f"]({PICTURES}/", f"]({quote(pictures)}/") if pictures else text


def write(document: "Document", path: Path, form: Format) -> None:
    """Write the result to `path`, with its manifest and its pictures (`NAME.pictures`) beside it. Raises `OSError`."""
    folder = document.pictures_folder if form is Format.MD else None
    beside = path.with_name(f"{path.stem}.pictures")
    if folder:
        shutil.copytree(folder, beside, dirs_exist_ok=True)
    write_text(path, text_of(document, form, beside.name if folder else ""))
    if document.manifest_path and document.manifest_path.exists():
        write_text(manifest_path(path), document.manifest_path.read_text(encoding="utf-8"))
