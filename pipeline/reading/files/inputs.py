"""Find the files to convert in folders, and tell them from results of earlier conversions."""

import json
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from pipeline.engine.errors import UserError
from pipeline.reading.files.source import ACCEPTED, safe_filename
from pipeline.reading.files.user_file import is_file_below, walk

SUFFIXES = frozenset(
    {
        *(".pdf", ".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".heic", ".heif", ".gif", ".bmp"),
        *(".docx", ".docm", ".pptx", ".pptm", ".xlsx", ".xlsm", ".xls", ".odt", ".odp", ".ods"),
        *(".epub", ".html", ".htm", ".xhtml", ".eml"),
    }
)
"""The suffixes, in any case, of input files in folders. Text files (.md, .txt, .csv) have to be named: in folders they
may be results."""

MANIFEST_SUFFIX = ".manifest.json"
"""The suffix of a manifest, which lies beside its result."""
RECORDS = "results"
"""A manifest's key for the records of results, by file name: several formats share a manifest."""

FILES = "files"
"""The manifest's key for the names of the results that share it."""
_SEARCHABLE = ".searchable.pdf"
_OTHER_SUFFIXES = (_SEARCHABLE, ".html", ".txt")
_FOLDERS = frozenset({".pictures", ".pages", ".tables"})


def discover(paths: Sequence[Path]) -> list[Path]:
    """Return the input files that `paths` name, each path once: a file as given, whatever its suffix; a folder
    as all inputs below it, sorted. Files of several folders keep the order of `paths`.

    Folders skip hidden files, other suffixes and links that lead out of the folder. Raises `UserError` with code
    `missing`, or `no_inputs` for a folder without inputs.
    """
    inputs: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            inputs.update(dict.fromkeys(_inputs_below(path)))
        elif path.exists():
            inputs[path] = None
        else:
            raise UserError(f"{path} does not exist; check the path.", code="missing")
    return list(inputs)


def other_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files in folders that `discover` skips, sorted: other types, pipes, links that lead out. Not hidden
    files or results."""
    return sorted(
        path
        for folder in dict.fromkeys(paths)
        if folder.is_dir()
        for path in _files_below(folder)
        if not _is_input(path, folder.resolve()) and not _is_result(path)
    )


def is_input_name(path: Path) -> bool:
    """Whether the suffix is that of an input: one of `SUFFIXES`. Reads no file."""
    return path.suffix.lower() in SUFFIXES


def _is_input(path: Path, root: Path) -> bool:
    return is_input_name(path) and is_file_below(path, root) and not _is_result(path)


def is_input_below(path: Path, folder: Path) -> bool:
    """Whether `path`, a file in `folder` or below, is an input that `discover` finds there."""
    return _is_shown(path, folder) and _is_input(path, folder.resolve())


def is_other_below(path: Path, folder: Path) -> bool:
    """Whether `path`, a file in `folder` or below, is neither hidden, nor an input, nor a result: one of
    `other_files`."""
    return _is_shown(path, folder) and not _is_input(path, folder.resolve()) and not _is_result(path)


def _is_shown(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and not any(
        _is_beside(parent) for parent in path.parents if parent != folder and folder in parent.parents
    )


def _inputs_below(folder: Path) -> list[Path]:
    root = folder.resolve()
    inputs = [path for path in _files_below(folder) if _is_input(path, root)]
    if not inputs:
        others = other_files([folder])
        named = (
            f" It has {', '.join(path.name for path in others[:3])}{' …' if len(others) > 3 else ''}." if others else ""
        )
        raise UserError(f"{folder} has no inputs; {ACCEPTED} are accepted.{named}", code="no_inputs")
    return sorted(inputs)


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in walk(folder):  # Linked folders are not entered.
        folders[:] = [name for name in folders if not name.startswith(".") and not _is_beside(Path(parent, name))]
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def _is_beside(folder: Path) -> bool:
    """Whether a folder holds the pictures, pages or tables of a result, which are not inputs."""
    return folder.suffix in _FOLDERS and os.path.lexists(folder.with_suffix(MANIFEST_SUFFIX))


def _is_result(path: Path) -> bool:
    """Whether a file is a result of Penstock: it has a manifest, or is a manifest. The manifest of `a.pdf` says nothing
    about an `a.html` that it does not name."""
    manifest = manifest_path(path)
    if path.name.endswith(MANIFEST_SUFFIX) or not os.path.lexists(manifest):  # `exists` raises for long names
        return path.name.endswith(MANIFEST_SUFFIX)
    is_plain = path.name.endswith(_SEARCHABLE) or not (is_input_name(path) or path.suffix in _OTHER_SUFFIXES)
    return is_plain or path.name in _written(manifest)


def _written(manifest: Path) -> Collection[str]:
    """Return the names of the results that a manifest names."""
    try:
        facts = json.loads(manifest.read_bytes())
        return [str(name) for key in (FILES, RECORDS) for name in facts.get(key) or ()]
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return ()


def manifest_path(result: Path) -> Path:
    """Return the path of the manifest beside a result, in any format. Neither need exist."""
    name = result.name.removesuffix(".md").removesuffix(".json")
    suffix = next((suffix for suffix in _OTHER_SUFFIXES if name.endswith(suffix)), "") if name == result.name else ""
    return result.with_name(f"{name.removesuffix(suffix)}{MANIFEST_SUFFIX}")


def result_name(filename: str, suffix: str = ".md") -> str:
    """Return the name of a copy of a result, set by the source's name alone: `a.pdf` → `a.md`, `a.jpg` → `a.jpg.md`.

    So `a.pdf` and `a.jpg` never claim the same name, and the result of `a.manifest.pdf` never takes the name of the
    manifest of `a.pdf`.
    """
    name = safe_filename(filename)
    short = f"{safe_filename(name.removesuffix('.pdf'))}{suffix}"
    return f"{name}{suffix}" if short.lower().endswith(MANIFEST_SUFFIX) else short
