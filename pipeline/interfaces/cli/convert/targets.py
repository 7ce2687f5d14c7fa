"""Decides where results go, from names alone and before any work."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from pipeline.engine.errors import UserError
from pipeline.reading.files.inputs import discover, manifest_path, result_name
from pipeline.reading.files.source import safe_stem

if TYPE_CHECKING:
    from pipeline.reading.text.zip_archive import Entry

STDOUT = "-"
_FILE_SUFFIXES = frozenset({".md", ".markdown", ".txt", ".json", ".html", ".pdf"})
"""A name with one of these suffixes means a file, not a new folder."""


@dataclass(frozen=True)
class Target:
    """One input and the path of its result; None: standard output. `inside`: for a file of an archive, the archive's
    path with that of the file inside."""

    source: Path
    path: Path | None
    inside: Path | None = None

    @property
    def label(self) -> Path:
        """The source as the user knows it."""
        return self.inside or self.source

    @property
    def exists(self) -> bool:
        """Whether the result or its manifest exists."""
        return self.path is not None and (self.path.exists() or os.path.lexists(manifest_path(self.path)))


def plan(
    inputs: Sequence[Path],
    output: str,
    suffix: str = ".md",
    archives: Mapping[Path, Sequence["Entry"]] = MappingProxyType({}),
) -> list[Target]:
    """A target for each file that `inputs` name, once each. `output` is a file, a folder, `-` for standard output, or
    empty for the current folder. `archives`: the unpacked files of those inputs that are archives.

    Raises `UserError` for a missing path, a folder without inputs, a place where the command cannot write, several
    files for `-` or for what names a file, and two files with the same target.
    """
    sources_below: dict[Path, tuple[Path, Path, Path | None]] = {}
    for input_path in inputs:
        if input_path in archives:
            for entry in archives[input_path]:
                if entry.path:
                    below = Path(safe_stem(input_path.name), entry.name).parent
                    sources_below[entry.path] = (entry.path, below, input_path / entry.name)
            continue
        for source in discover([input_path]):
            # Files from an input folder keep their relative place below the result folder.
            below = source.parent.relative_to(input_path) if input_path.is_dir() else Path()
            # Convert a file that is named twice only once.
            sources_below.setdefault(Path(os.path.abspath(source)), (source, below, None))  # noqa: PTH100  # drops ..
    sources = list(sources_below.values())
    if output == STDOUT:
        if len(sources) != 1:
            raise UserError(f"-o - takes one file, not {len(sources)}: name a folder with -o", code="usage")
        return [Target(sources[0][0], None, sources[0][2])]
    folder = Path(output)
    # The files of a folder go to a folder, even if there is only one.
    to_file = len(sources) == 1 and not any(path.is_dir() or path in archives for path in inputs)
    if output and to_file and not folder.is_dir() and not output.endswith(os.sep):
        check_writable(folder.parent)
        if folder.exists() and folder.samefile(sources[0][0]):
            raise UserError(f"-o {output} is the file to convert: choose another name", code="usage")
        return [Target(sources[0][0], folder)]
    check_folder(output)
    targets = [Target(source, target_path(folder, below, source, suffix), inside) for source, below, inside in sources]
    _check_distinct(targets, folds_case=_folds_case(folder))
    return targets


def target_path(folder: Path, below: Path, source: Path, suffix: str) -> Path:
    """The result's path for `source`: `report.pdf` becomes `report.md`."""
    return folder / below / result_name(source.name, suffix)


def check_folder(output: str) -> None:
    """Raise `UserError` if `output` cannot be the folder of several results: it is a file, names one by its suffix, or
    is not writable."""
    folder = Path(output)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, but these results need a folder", code="usage")
    if not folder.exists() and not output.endswith(os.sep) and folder.suffix.lower() in _FILE_SUFFIXES:
        raise UserError(
            f"-o {output} names a file, but these results need a folder ({output}/ if that is its name)", code="usage"
        )
    check_writable(folder)


def _check_distinct(targets: Iterable[Target], *, folds_case: bool) -> None:
    """Raise `UserError` if two inputs have the same target. The command adds no numbers to names, because they would
    change with the other inputs."""
    source_of: dict[str, Path] = {}
    for target in targets:
        name = str(target.path).casefold() if folds_case else str(target.path)
        if name in source_of:
            raise UserError(
                f"{source_of[name]} and {target.label} would both become {target.path}: convert them in two commands, "
                "each with a folder of its own (-o)",
                code="usage",
            )
        source_of[name] = target.label


def _folds_case(folder: Path) -> bool:
    """Whether a.md and A.md are the same file in this folder."""
    existing = _existing(folder)
    for named in (existing, *existing.parents):
        if (other := named.name.swapcase()) != named.name:
            return named.with_name(other).exists() and named.with_name(other).samefile(named)
    return False


def _existing(folder: Path) -> Path:
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    return existing


def check_writable(folder: Path) -> None:
    """Raise `UserError` unless the command can create files in this folder, which need not exist yet."""
    existing = _existing(folder)
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {folder.absolute()}: choose another place with -o", code="output")
