"""A directory's files as items, one each: those in it, not those in its folders. It can be scanned again."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import select

from pipeline.engine.errors import UserError
from pipeline.engine.tables import storable
from pipeline.flows.knowledge import files, intake, live_settings, queries, service
from pipeline.flows.knowledge.intake import Added, Progress, Refused, Source
from pipeline.flows.knowledge.models import ITEMS
from pipeline.flows.knowledge.rules.workload import workload
from pipeline.flows.knowledge.states import ItemType
from pipeline.flows.knowledge.views import ItemView
from pipeline.storage.context import Context


@dataclass
class Scanned(Added):
    """What a scan found: new files are `created`, and these were there already."""

    group_id: str = ""
    changed: list[ItemView] = field(default_factory=list)
    """They are read again."""
    unchanged: int = 0
    gone: list[str] = field(default_factory=list)
    """Items whose files are no longer there; they are being deleted."""
    ignored: int = 0
    """Folders and hidden files."""


def scan(
    context: Context, base_id: str, folder: Path, *, keep_gone: bool = False,
    progress: Progress = lambda *_: None,
) -> Scanned:  # fmt: skip
    """Add the files of a directory, and see to those of an earlier scan that have changed or gone. Raises `UserError`.

    Source 003, "读取约束": folders in it are passed by. Links are not followed.
    """
    base, root = queries.base(context, base_id), _checked(folder)
    known = _known(context, base.id, str(root))
    group_id = next((row.group_id for row in known.values()), None) or f"grp-{uuid4().hex[:12]}"
    scanned, new = Scanned(group_id=group_id), []
    here: set[str] = set()
    for path in _files(root, scanned):
        here.add(str(path))
        if str(path) != storable(str(path)):
            scanned.failed.append(Refused(storable(str(path)), "its name is not valid text: rename it", "bad_name"))
        elif str(path) in known:
            _look(context, known[str(path)], path, scanned)
        else:
            new.append(Source(ItemType.DIRECTORY, path, group_id=group_id, group_name=str(root), origin=str(path)))
    added = intake.add(context, base.id, new, progress)
    scanned.created += added.created
    scanned.failed += added.failed
    scanned.warnings += added.warnings
    if not keep_gone:
        scanned.gone = [row.id for origin, row in known.items() if origin not in here]
        service.delete_items(context, scanned.gone)
    return scanned


def _checked(folder: Path) -> Path:
    try:
        root = folder.resolve(strict=True)
        if root.is_dir() and str(root) == storable(str(root)):
            return root
        if root.is_dir():
            raise UserError(f"{folder}: its path is not valid text: rename it", code="bad_name")
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror or error}", code="io_error") from error
    except ValueError as error:  # a NUL, or half a character
        raise UserError(f"{folder}: no folder has such a name", code="bad_name") from error
    raise UserError(f"{folder} is not a directory", code="not_a_directory")


def _known(context: Context, base_id: str, group_name: str) -> dict[str, Any]:
    mine = select(ITEMS).where(
        ITEMS.c.base_id == base_id, ITEMS.c.type == ItemType.DIRECTORY, ITEMS.c.group_name == group_name,
        ITEMS.c.deleting.is_(False), ITEMS.c.origin.is_not(None),
    )  # fmt: skip
    with context.db.read() as session:
        return {row.origin: row for row in session.execute(mine)}


def _files(root: Path, scanned: Scanned) -> Iterator[Path]:
    try:
        entries = sorted(root.iterdir())
    except OSError as error:
        raise UserError(f"{root}: {error.strerror or error}", code="io_error") from error
    for entry in entries:
        if entry.is_symlink():
            scanned.failed.append(Refused(str(entry), "it is a link, and links are not followed", "link"))
        elif entry.name.startswith(".") or entry.is_dir():
            scanned.ignored += 1
        else:
            yield entry


def _look(context: Context, row: Any, path: Path, scanned: Scanned) -> None:
    """Take a known file's new content, if it has any."""
    limits = live_settings.in_force(context)
    try:
        with files.incoming(context.settings, path, limits.max_file_mb * 1_000_000) as (copy, digest, size):
            if digest == row.content_sha256:
                scanned.unchanged += 1
                return
            files.place(copy, files.stored_path(context.settings, row.id, digest))
            cost = workload(size, 0)
            view = service.reprocess(context, row.id, content_sha256=digest, size_bytes=size, workload=cost)
            scanned.changed.append(view)
        files.keep_only(context.settings, row.id, digest)
    except UserError as error:
        scanned.failed.append(Refused(str(path), str(error), error.code))
