"""What a document came to, as files where the user wants them."""

import json
import shutil
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from tasks.documents import Document


class Format(StrEnum):
    """What is written: Markdown, or what stands where on the pages."""

    MD = "md"
    JSON = "json"


def text_of(document: "Document", form: Format, pictures: str = "") -> str:
    """The result as one text; `pictures`: the folder that its links name, where there are any.

    Raises `UserError` where there is no result yet."""
    from pipeline.flows.documents.files import PICTURES

    text = document.read_text()
    if form is Format.JSON:
        return json.dumps(document.layout(), indent=2, ensure_ascii=False) + "\n"
    return text.replace(f"]({PICTURES}/", f"]({quote(pictures)}/") if pictures else text


def write(document: "Document", path: Path, form: Format) -> None:
    """Write the result to `path`, its manifest beside it, and its pictures into `NAME.pictures`. Raises `OSError`."""
    from pipeline.flows.documents.files import manifest_path, write_text

    folder = document.pictures_folder if form is Format.MD else None
    beside = path.with_name(f"{path.stem}.pictures")
    if folder:
        shutil.copytree(folder, beside, dirs_exist_ok=True)
    write_text(path, text_of(document, form, beside.name if folder else ""))
    if document.manifest_path and document.manifest_path.exists():
        write_text(manifest_path(path), document.manifest_path.read_text(encoding="utf-8"))
