"""Results of documents as files, with manifests that record the source and options of each."""

import hashlib
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pipeline.engine import privacy
from pipeline.flows.documents.files import PICTURES
from pipeline.interfaces.cli.command import Format
from pipeline.reading.files.inputs import MANIFEST_SUFFIX, RECORDS, manifest_path
from pipeline.reading.files.user_file import open_file, staged_text, walk

if TYPE_CHECKING:
    from pipeline.operations.documents import Document

_PICTURES = "pictures"
"""The manifest's key for the hashes of pictures, by name."""
_MOST_BYTES = 100_000_000
"""Largest size of a manifest; one of ten thousand pages, each with two attempts, has a tenth of it."""
_NOT_OURS = "does not come from `penstock convert`, or was edited, and stays"


@dataclass(frozen=True)
class Origin:
    """The source and options of a result: while they stay the same, converting again would change nothing."""

    source: Path
    sha256: str
    options: dict[str, str | bool]


@dataclass(frozen=True)
class Record:
    """A manifest's record of one result. `source` is relative to the result's folder; hashes are SHA-256."""

    source: str
    source_sha256: str
    options: dict[str, str | bool]
    complete: bool
    sha256: str
    replaced: str
    """The hash of the earlier result, which stays if an interruption keeps this one from replacing it."""

    @classmethod
    def of(cls, path: Path) -> "Record | None":
        """The record of the result at `path`; None if no manifest has a readable one."""
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(cls).validate_python(_recorded(path).get(path.name))
        except ValidationError:
            return None


def sourceless(folder: Path, sources: Sequence[Path], known: Collection[Path]) -> list[Path]:
    """Results in and below a folder whose source files, below `sources`, no longer exist; leaves out those that share a
    manifest with a result in `known`."""
    roots, at_hand = [source.resolve() for source in sources], {manifest_path(path) for path in known}
    manifests = sorted(
        path
        for parent, _, names in walk(folder)
        for name in names
        if name.endswith(MANIFEST_SUFFIX) and (path := parent / name) not in at_hand
    )
    orphans = []
    for manifest in manifests:
        names = _read(manifest).get(RECORDS)
        for path in [manifest.with_name(name) for name in names or () if name == Path(name).name]:
            record = Record.of(path) if path.is_file() else None
            source = Path(os.path.normpath(path.parent.resolve() / record.source)) if record else None
            if source and not source.exists() and any(source.is_relative_to(root) for root in roots):
                orphans.append(path)
    return orphans


def predates_records(path: Path) -> bool:
    """Whether the manifest of the result at `path` comes from a version that kept no records."""
    facts = _read(manifest_path(path))
    return facts.keys() >= {"version", "document"} and RECORDS not in facts


def manifest_in_the_way(path: Path) -> str:
    """Why the manifest of the result at `path` would replace another file; empty if it would not."""
    manifest = manifest_path(path)
    if not os.path.lexists(manifest):
        return ""
    # A result in JSON may have the name of a manifest; then it has a record itself.
    is_ours = _read(manifest).keys() >= {"version", "document"} and Record.of(manifest) is None
    return "" if is_ours else f"{manifest} {_NOT_OURS}"


def pictures_in_the_way(document: "Document", path: Path, form: Format) -> str:
    """Why the pictures of the result at `path` would replace other files; empty if they would not."""
    folder, beside = _pictures(document, form), _pictures_beside(path)
    if folder is None or not os.path.lexists(beside):
        return ""
    if beside.is_symlink() or not beside.is_dir():
        return f"{beside} {_NOT_OURS}"
    recorded = _read(manifest_path(path)).get(_PICTURES)
    for picture in sorted(folder.iterdir()):
        existing = beside / picture.name
        known = {sha256(picture), recorded.get(picture.name) if isinstance(recorded, dict) else None}
        if os.path.lexists(existing) and (
            existing.is_symlink() or not existing.is_file() or sha256(existing) not in known
        ):
            return f"{existing} {_NOT_OURS}"
    return ""


def _pictures(document: "Document", form: Format) -> Path | None:
    return document.pictures_folder if form is Format.MD else None


def _pictures_beside(path: Path) -> Path:
    return path.with_name(f"{path.stem}.pictures")


def text_of(document: "Document", form: Format, pictures: str = "") -> str:
    """The result as one text. `pictures`: the folder to which links in Markdown lead; empty leaves them unchanged.

    Raises `UserError` while the document has no result.
    """
    text = document.read_text()
    if form is not Format.MD:
        content = document.layout() if form is Format.JSON else document.docling()
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    return text.replace(f"]({PICTURES}/", f"]({quote(pictures)}/") if pictures else text


def write(document: "Document", path: Path, form: Format, origin: Origin | None = None) -> None:
    """Write the result to `path`, with its manifest and its pictures (`NAME.pictures`) beside it, over files of these
    names. Raises `OSError`, and `UserError` if the document has no result or was deleted.

    `origin`: its source and options, which `Record.of` reads later; None records nothing.
    """
    folder, beside = _pictures(document, form), _pictures_beside(path)
    pictures = _read(manifest_path(path)).get(_PICTURES)
    if folder:
        privacy.copy_to_user(folder, beside)
        pictures = {picture.name: sha256(picture) for picture in sorted(folder.iterdir())}
    text = text_of(document, form, beside.name if folder else "")
    facts = {**_read(document.manifest_path), RECORDS: _records(path), **({_PICTURES: pictures} if pictures else {})}
    if origin is not None:
        facts[RECORDS][path.name] = {
            "source": os.path.relpath(origin.source, path.parent),
            "source_sha256": origin.sha256,
            "options": origin.options,
            "complete": document.status.name == "COMPLETED",
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "replaced": sha256(path) if path.is_file() else "",
        }
    # File names need not be UTF-8: other bytes become JSON escapes.
    manifest = json.dumps(facts, indent=2, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    mode = privacy.users_mode(0o666)
    privacy.make_users_folder(path.parent)
    with (
        staged_text(path, text, mode) as place_text,
        staged_text(manifest_path(path), manifest, mode) as place_manifest,
    ):
        # In this order: after an interruption, the record says that the next run may replace the text.
        place_manifest()
        place_text()


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content. Raises `OSError`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _records(path: Path) -> dict[str, Any]:
    """The records of the other results that share the manifest of the one at `path` and still exist, by file name."""
    records = {name: record for name, record in _recorded(path).items() if name == Path(name).name != path.name}
    return {name: record for name, record in records.items() if path.with_name(name).exists()}


def _recorded(path: Path) -> dict[str, Any]:
    """The records in the manifest of the result at `path`, by name."""
    records = _read(manifest_path(path)).get(RECORDS)
    return records if isinstance(records, dict) else {}


def _read(manifest: Path | None) -> dict[str, Any]:
    """The content of a manifest; empty without a readable one."""
    if manifest is None:
        return {}
    try:
        with open_file(manifest) as file:
            text = file.read(_MOST_BYTES + 1)
        content = json.loads(text) if len(text) <= _MOST_BYTES else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
