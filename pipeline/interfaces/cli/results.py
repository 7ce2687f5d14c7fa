"""Results of documents as files, with manifests that record the source and options of each."""

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pipeline.engine import privacy
from pipeline.flows.documents.files import PICTURES
from pipeline.reading.export.formats import Format, Shape
from pipeline.reading.files.inputs import FILES, MANIFEST_SUFFIX, RECORDS, manifest_path
from pipeline.reading.files.user_file import open_file, staged, walk

if TYPE_CHECKING:
    from pipeline.operations.documents import Document

_PICTURES, _SPLIT, _TABLES = "pictures", "split", "tables"
"""The manifest's keys for the hashes of pictures, files of single pages and tables, by name."""
_REPORT = "searchable_pdf"
"""The manifest's key for what the searchable PDF contains."""
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


def in_the_way(document: "Document", path: Path, form: Format, shape: Shape) -> str:
    """Why the folders of the result at `path` would replace other files; empty if they would not."""
    recorded = _read(manifest_path(path))
    for key, folder, contents in _beside(document, path, form, shape):
        if not os.path.lexists(folder):
            continue
        if folder.is_symlink() or not folder.is_dir():
            return f"{folder} {_NOT_OURS}"
        known = recorded.get(key)
        for name, content in contents.items():
            existing = folder / name
            hashes = {_hash(content), known.get(name) if isinstance(known, dict) else None}
            if os.path.lexists(existing) and (
                existing.is_symlink() or not existing.is_file() or sha256(existing) not in hashes
            ):
                return f"{existing} {_NOT_OURS}"
    return ""


def _beside(
    document: "Document", path: Path, form: Format, shape: Shape
) -> Iterator[tuple[str, Path, dict[str, bytes | Path]]]:
    """Yield the folders beside the result at `path`: the manifest's key, the folder, and its files by name."""
    from pipeline.operations import documents

    stem = _stem(path, form)
    pictures = document.pictures_folder if form is Format.MD else None
    if pictures is not None:
        contents: dict[str, bytes | Path] = {picture.name: picture for picture in sorted(pictures.iterdir())}
        yield _PICTURES, path.with_name(f"{stem}.pictures"), contents
    if shape.split and form is not Format.PDF:
        link = f"../{stem}.pictures" if pictures else ""
        contents = {
            f"{stem}-{number:04d}{form.suffix}": _linked(content, form, link)
            for number, content in documents.result_by_page(document.id, form)
        }
        yield _SPLIT, path.with_name(f"{stem}.pages"), contents
    if shape.tables:
        tables = documents.tables_as_csv(document.id)
        contents = {f"{stem}-p{page:04d}-{number}.csv": content for page, number, content in tables}
        if contents:
            yield _TABLES, path.with_name(f"{stem}.tables"), contents


def _stem(path: Path, form: Format) -> str:
    return path.name.removesuffix(form.suffix) if path.name.endswith(form.suffix) else path.stem


def _linked(content: bytes, form: Format, pictures: str) -> bytes:
    """Let links to pictures in Markdown lead to the folder `pictures`; empty leaves them unchanged."""
    if form is not Format.MD or not pictures:
        return content
    return content.replace(f"]({PICTURES}/".encode(), f"]({quote(pictures)}/".encode())


def content_of(document: "Document", form: Format, shape: Shape, pictures: str = "") -> bytes:
    """The result in a format. `pictures`: the folder to which links in Markdown lead; empty leaves them unchanged.

    Raises `UserError` while the document has no result.
    """
    return _linked(document.result(form, markers=shape.markers), form, pictures)


def write(document: "Document", path: Path, form: Format, origin: Origin | None = None, shape: Shape = Shape()) -> None:
    """Write the result to `path`, with its manifest and its folders (`NAME.pictures`, `NAME.pages`, `NAME.tables`)
    beside it, over files of these names. Raises `OSError`, and `UserError` if the document has no result or was
    deleted.

    `origin`: its source and options, which `Record.of` reads later; None records nothing.
    """
    content = content_of(document, form, shape, f"{_stem(path, form)}.pictures" if document.pictures_folder else "")
    before = _read(manifest_path(path))
    kept = {key: before[key] for key in (_PICTURES, _SPLIT, _TABLES, _REPORT) if isinstance(before.get(key), dict)}
    written = before.get(FILES)
    files = {name for name in written if isinstance(name, str)} if isinstance(written, list) else set()
    facts = {**_read(document.manifest_path), **kept, RECORDS: _records(path), FILES: sorted(files | {path.name})}
    if form is Format.PDF:
        from pipeline.operations.documents import searchable_report

        facts[_REPORT] = searchable_report(document.id)
    mode = privacy.users_mode(0o666)
    privacy.make_users_folder(path.parent)
    for key, folder, contents in _beside(document, path, form, shape):
        facts[key] = _replaced(folder, contents, facts.get(key, {}), mode)
    if origin is not None:
        facts[RECORDS][path.name] = {
            "source": os.path.relpath(origin.source, path.parent),
            "source_sha256": origin.sha256,
            "options": origin.options,
            "complete": document.status.name == "COMPLETED",
            "sha256": hashlib.sha256(content).hexdigest(),
            "replaced": sha256(path) if path.is_file() else "",
        }
    # File names need not be UTF-8: other bytes become JSON escapes.
    manifest = json.dumps(facts, indent=2, ensure_ascii=False).encode("utf-8", "backslashreplace")
    with staged(path, content, mode) as place_result, staged(manifest_path(path), manifest, mode) as place_manifest:
        # In this order: after an interruption, the record says that the next run may replace the result.
        place_manifest()
        place_result()


def _replaced(
    folder: Path, contents: Mapping[str, bytes | Path], known: Mapping[str, Any], mode: int
) -> dict[str, Any]:
    """Write files into a folder beside a result, and return their hashes by name, with the known ones of other formats.
    Remove unchanged files of an earlier result of the same format that this one has not."""
    privacy.make_users_folder(folder)
    suffixes = {Path(name).suffix for name in contents}
    hashes = {}
    for name, known_hash in known.items():
        path = folder / Path(name).name
        if path.suffix not in suffixes:
            hashes[name] = known_hash
        elif name not in contents and path.is_file() and not path.is_symlink() and sha256(path) == known_hash:
            path.unlink()
    for name, content in contents.items():
        with staged(folder / name, content if isinstance(content, bytes) else content.read_bytes(), mode) as place:
            place()
        hashes[name] = _hash(content)
    return hashes


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content. Raises `OSError`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash(content: bytes | Path) -> str:
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else sha256(content)


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
