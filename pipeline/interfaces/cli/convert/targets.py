"""Where results go, decided before any work is done."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from pipeline.engine.errors import UserError
from pipeline.flows.documents.files import stem
from pipeline.reading.source import discover

STDOUT = "-"


@dataclass(frozen=True)
class Target:
    """One input and where its Markdown goes; `path` None: to standard output."""

    source: Path
    path: Path | None

    @property
    def exists(self) -> bool:
        return self.path is not None and self.path.exists()


def plan(inputs: Sequence[Path], output: str, suffix: str = ".md") -> list[Target]:
    """A target for each file that `inputs` name; `output` is a file, a folder, `-`, or empty.

    Raises `UserError` for what cannot be read or written."""
    found: dict[Path, tuple[Path, Path]] = {}
    for given in inputs:
        for source in discover([given]):
            # Below the result folder, files keep the place that they have below a folder that was given.
            below = source.parent.relative_to(given) if given.is_dir() else Path()
            # The same file named twice is converted once.
            found.setdefault(Path(os.path.abspath(source)), (source, below))  # noqa: PTH100  # drops ..
    sources = list(found.values())
    if output == STDOUT:
        if len(sources) != 1:
            raise UserError(f"-o - takes one file, not {len(sources)}: name a folder with -o", code="usage")
        return [Target(sources[0][0], None)]
    folder = Path(output)
    # The files of a folder go to a folder, even if there is only one.
    to_file = len(sources) == 1 and not any(given.is_dir() for given in inputs)
    if output and to_file and not folder.is_dir() and not output.endswith(os.sep):
        _check_writable(folder.parent)
        return [Target(sources[0][0], folder)]
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, but these results need a folder", code="usage")
    _check_writable(folder)
    return _distinct(folder, sources, suffix)


def _distinct(folder: Path, sources: Sequence[tuple[Path, Path]], suffix: str) -> list[Target]:
    taken: set[str] = set()  # case-folded: a.md and A.md are the same file on many systems
    targets = []
    for source, below in sources:
        # a.pdf and a.png, or two folders' report.pdf: a, a-2, a-3 …
        names = (f"{stem(source.name)}{f'-{n}' if n > 1 else ''}{suffix}" for n in count(1))
        path = next(candidate for name in names if str(candidate := folder / below / name).casefold() not in taken)
        taken.add(str(path).casefold())
        targets.append(Target(source, path))
    return targets


def _check_writable(folder: Path) -> None:
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {folder.absolute()}: choose another place with -o", code="output")
