"""Scans a directory: adds each file below it as an item, and updates the items when it is scanned again."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import select

from pipeline.engine import losses
from pipeline.engine.errors import UserError
from pipeline.engine.tables import storable
from pipeline.flows.knowledge import intake, queries, service
from pipeline.flows.knowledge.intake import Added, Progress, Refused, Source
from pipeline.flows.knowledge.models import ITEMS
from pipeline.flows.knowledge.states import MOSTLY_MISSING, ItemType
from pipeline.reading.files.user_file import walk
from pipeline.storage.context import Context


@dataclass
class Scanned(Added):
    """The result of a scan."""

    group_id: str = ""
    """The group of the directory itself; each folder in it has its own group."""
    gone: list[str] = field(default_factory=list)
    """Items of missing files, which the scan started to delete."""
    ignored: int = 0
    """Hidden files and folders."""


def scan(
    context: Context,
    base_id: str,
    folder: Path,
    *,
    keep_gone: bool = False,
    accept_missing: bool = False,
    progress: Progress = lambda *_: None,
) -> Scanned:
    """Add a directory's new files, read changed files again, and delete the items of files that it does not find, which
    `keep_gone` keeps: missing or hidden files, and links. If the loss is doubtful (`engine.losses`), delete nothing and
    name the number in `failed`, unless `accept_missing`. Raises `UserError`, also if the directory itself cannot be
    listed.

    Each folder is a directory by docs/sources/knowledge.md#directories, with one group for its own files. The scan
    follows no links. An item that was added alone joins the group of its folder, but stays when its file is missing.
    Items below a folder that cannot be listed stay too, since their files may exist.
    """
    base, root = queries.base(context, base_id), _checked(folder)
    known = _known(context, base.id, root)
    groups = {row.group_name: row.group_id for row in known.values()}
    scanned, sources = Scanned(group_id=groups.setdefault(str(root), _new_group())), []
    unlisted: list[Path] = []
    for path in _files(root, scanned, unlisted):
        if str(path) == storable(str(path)):
            group = groups.setdefault(str(path.parent), _new_group())
            sources.append(
                Source(ItemType.DIRECTORY, path, group_id=group, group_name=str(path.parent), origin=str(path))
            )
        else:
            scanned.failed.append(Refused(storable(str(path)), "its name is not valid text: rename it", "bad_name"))
    intake.add(context, base.id, sources, progress, scanned)
    if not keep_gone:
        origins = {source.origin for source in sources}
        listed = [path for path in map(Path, known) if not any(path.is_relative_to(parent) for parent in unlisted)]
        gone = [path for path in listed if str(path) not in origins]
        if not accept_missing and (why := _doubt(root, listed, gone)):
            scanned.failed.append(Refused(str(root), why, MOSTLY_MISSING))
        else:
            scanned.gone = [known[str(path)].id for path in gone]
            service.delete_items(context, *scanned.gone)
    return scanned


def _doubt(root: Path, known: Collection[Path], gone: Collection[Path]) -> str:
    """Return the reason not to believe that these files are gone; empty if it is plausible. A folder that still exists
    but has lost all of several files may be where a disk was mounted."""
    if why := losses.doubt(len(known), len(gone), "files", "nothing is deleted"):
        return why
    held, lost = (Counter(parent for path in paths for parent in path.parents) for paths in (known, gone))
    emptied = [folder for folder, count in lost.items() if losses.FEW <= count == held[folder]]
    # The outermost one names the largest loss.
    for folder in sorted(folder for folder in emptied if folder.is_relative_to(root) and folder.is_dir()):
        return f"in {folder}: {losses.doubt(held[folder], lost[folder], 'files', 'nothing is deleted')}"
    return ""


def _new_group() -> str:
    return f"grp-{uuid4().hex[:12]}"


def _checked(folder: Path) -> Path:
    try:
        root = folder.resolve(strict=True)
        if root.is_dir() and str(root) == storable(str(root)):
            return root
        if root.is_dir():
            raise UserError(f"{folder}: its path is not valid text: rename it", code="bad_name")
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror or error}", code="io_error") from error
    except ValueError as error:  # the path contains a NUL or a lone surrogate
        raise UserError(f"{folder}: no folder has such a name", code="bad_name") from error
    raise UserError(f"{folder} is not a directory", code="not_a_directory")


def _known(context: Context, base_id: str, root: Path) -> dict[str, Any]:
    """Return the items below this folder that scans have added, by path."""
    query = select(ITEMS).where(
        ITEMS.c.base_id == base_id,
        ITEMS.c.type == ItemType.DIRECTORY,
        ITEMS.c.deleting.is_(False),
        ITEMS.c.origin.startswith(f"{root}/".replace("//", "/"), autoescape=True),
    )
    with context.db.read() as session:
        # SQLite's LIKE ignores case, but file systems do not.
        return {row.origin: row for row in session.execute(query) if Path(row.origin).is_relative_to(root)}


def _files(root: Path, scanned: Scanned, unlisted: list[Path]) -> Iterator[Path]:
    def note(error: OSError) -> None:
        why = error.strerror or str(error)
        if Path(error.filename) == root:
            raise UserError(f"{root}: {why}", code="io_error") from error
        scanned.failed.append(Refused(storable(str(error.filename)), why, "io_error"))
        unlisted.append(Path(error.filename))

    for parent, folders, names in walk(root, note):
        shown = sorted(name for name in [*folders, *names] if not name.startswith("."))
        scanned.ignored += len(folders) + len(names) - len(shown)
        inner = {name for name in folders if not name.startswith(".")}
        for path in (Path(parent, name) for name in shown):
            if path.is_symlink():
                inner.discard(path.name)
                scanned.failed.append(Refused(storable(str(path)), "it is a link, and links are not followed", "link"))
            elif path.name not in inner:
                yield path
        folders[:] = sorted(inner)
