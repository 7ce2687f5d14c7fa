"""Where the results of `penstock convert` go, decided before any work is done."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.documents.files import stem
from pipeline.documents.sources import discover
from pipeline.engine.errors import UserError

STDOUT = Path("-")


@dataclass(frozen=True)
class Target:
    """One input and where its Markdown goes; `path` None: to standard output."""

    source: Path
    path: Path | None

    @property
    def exists(self) -> bool:
        return self.path is not None and self.path.exists()


def plan(inputs: Sequence[Path], output: Path | None) -> list[Target]:
    """A target for each file that `inputs` name. Raises `UserError` for what cannot be read or written."""
    sources = [(source, _below(source, given)) for given in inputs for source in discover([given])]
    sources = list(dict(sources).items())  # the same file named twice is converted once
    if output == STDOUT:
        if len(sources) != 1:
            raise UserError(f"-o - takes one file, not {len(sources)}: name a folder with -o", code="output")
        return [Target(sources[0][0], None)]
    if output is not None and len(sources) == 1 and not _is_folder(output):
        _check_writable(output.parent)
        return [Target(sources[0][0], output)]
    folder = output or Path()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, but {len(sources)} results need a folder", code="output")
    _check_writable(folder)
    return _distinct(folder, sources)


def _is_folder(output: Path) -> bool:
    return output.is_dir() or str(output).endswith(os.sep)


def _below(source: Path, given: Path) -> Path:
    """The folder inside the result folder: as it was inside the folder that was given."""
    return source.parent.relative_to(given) if given.is_dir() else Path()


def _distinct(folder: Path, sources: Sequence[tuple[Path, Path]]) -> list[Target]:
    taken: set[Path] = set()
    targets = []
    for source, below in sources:
        name = stem(source.name)
        path = folder / below / f"{name}.md"
        if path in taken:  # a.pdf and a.png, or two folders' report.pdf
            path = next(
                candidate for n in range(2, len(sources) + 2) if (candidate := folder / below / f"{name}-{n}.md") not in taken
            )
        taken.add(path)
        targets.append(Target(source, path))
    return targets


def _check_writable(folder: Path) -> None:
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {folder.absolute()}: choose another place with -o", code="output")
