"""Files to convert: what is one in a folder, and what is a result that lies there."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.engine.errors import UserError
from pipeline.reading.files.source import ACCEPTED, safe_filename
from pipeline.reading.files.user_file import is_file_below, walk

SUFFIXES = frozenset({".pdf", ".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff"})
"""The suffixes, in any case, of files in a folder that are inputs."""

MANIFEST_SUFFIX = ".manifest.json"
"""What the names of manifests end with, which lie beside results."""


def discover(paths: Sequence[Path]) -> list[Path]:
    """The input files that `paths` name, each once: files as they are, and all inputs below folders, sorted.

    In folders, hidden files, other suffixes and links that lead out of the folder are skipped. Raises `UserError` with
    code `missing`, or `no_inputs` for a folder without any.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            found.update(dict.fromkeys(_inputs_below(path)))
        elif path.exists():
            found[path] = None
        else:
            raise UserError(f"{path} does not exist; check the path.", code="missing")
    return list(found)


def other_files(paths: Sequence[Path]) -> list[Path]:
    """What `discover` passes over below folders in `paths`: other types, pipes, links that lead out. No results."""
    return sorted(
        path
        for folder in dict.fromkeys(paths)
        if folder.is_dir()
        for path in _files_below(folder)
        if not _is_input(path, folder.resolve()) and not _is_result(path)
    )


def is_input_name(path: Path) -> bool:
    """Whether the suffix is one of an input."""
    return path.suffix.lower() in SUFFIXES


def _is_input(path: Path, root: Path) -> bool:
    return is_input_name(path) and is_file_below(path, root)


def is_input_below(path: Path, folder: Path) -> bool:
    """Whether `discover` finds `path` in `folder`."""
    return _is_shown(path, folder) and _is_input(path, folder.resolve())


def is_other_below(path: Path, folder: Path) -> bool:
    """Whether `other_files` finds `path` in `folder`."""
    return _is_shown(path, folder) and not _is_input(path, folder.resolve()) and not _is_result(path)


def _is_shown(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and not any(
        _is_pictures(parent) for parent in path.parents if parent != folder and folder in parent.parents
    )


def _inputs_below(folder: Path) -> list[Path]:
    root = folder.resolve()
    found = [path for path in _files_below(folder) if _is_input(path, root)]
    if not found:
        others = other_files([folder])
        named = (
            f" It has {', '.join(path.name for path in others[:3])}{' …' if len(others) > 3 else ''}." if others else ""
        )
        raise UserError(f"{folder} has no inputs; {ACCEPTED} are accepted.{named}", code="no_inputs")
    return sorted(found)


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in walk(folder):  # Linked folders are not entered.
        folders[:] = [name for name in folders if not name.startswith(".") and not _is_pictures(Path(parent, name))]
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def _is_pictures(folder: Path) -> bool:
    """Whether a folder holds the pictures of a result, which are no inputs."""
    return folder.suffix == ".pictures" and folder.with_suffix(MANIFEST_SUFFIX).exists()


def _is_result(path: Path) -> bool:
    """Whether a file is a result of ours: it has a manifest, or is one."""
    return path.name.endswith(MANIFEST_SUFFIX) or manifest_path(path).exists()


def manifest_path(result: Path) -> Path:
    """The manifest beside a result, which is Markdown or JSON."""
    return result.with_name(f"{result.name.removesuffix('.md').removesuffix('.json')}{MANIFEST_SUFFIX}")


def result_name(filename: str, suffix: str = ".md") -> str:
    """The name of a copy of a result, which depends on nothing but the source's: `a.pdf`, `a.md`; `a.jpg`, `a.jpg.md`.

    So `a.pdf` and `a.jpg` never claim the same name, whichever comes first; and what `a.manifest.pdf` becomes is never
    called like the manifest of `a.pdf`.
    """
    name = safe_filename(filename)
    short = f"{safe_filename(name.removesuffix('.pdf'))}{suffix}"
    return f"{name}{suffix}" if short.lower().endswith(MANIFEST_SUFFIX) else short
