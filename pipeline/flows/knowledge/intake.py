"""Adds items to a base: refuses invalid sources one by one, and puts the valid ones in line.

Rules: docs/sources/knowledge.md#adding-many.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import structlog
from sqlalchemy import func, insert, or_, select, update
from sqlalchemy.orm import Session

from pipeline.engine import accounts, announced
from pipeline.engine.accounts import CALLER, OverCap
from pipeline.engine.errors import UserError
from pipeline.engine.tables import portions, storable
from pipeline.engine.transaction import Tx
from pipeline.flows.knowledge import files, live_settings, queries, service
from pipeline.flows.knowledge.models import ITEMS, MAX_NAME, MAX_URL
from pipeline.flows.knowledge.rules.workload import workload
from pipeline.flows.knowledge.settings import KnowledgeSettings
from pipeline.flows.knowledge.states import FLOW, LINE, ItemStatus, ItemType
from pipeline.flows.knowledge.views import CAMEL, ItemView
from pipeline.flows.knowledge.work.admission import IN_LINE
from pipeline.reading.files.source import safe_filename
from pipeline.storage import installation
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
PORTION = 100
"""Sources handled in one transaction."""
Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class Source:
    """The source of an item: a file's `path`, the `url` of a page or sitemap, or a note's `text`.

    `name`: the name to show, if it differs from the name in the path. `origin`: the file's real path; an upload has
    none.
    """

    type: ItemType
    path: Path | None = None
    url: str = ""
    text: str = ""
    name: str = ""
    group_id: str = ""
    group_name: str = ""
    origin: str = ""

    @classmethod
    def of_file(cls, path: Path, name: str = "") -> "Source":
        """Return the source of a file that the caller names by itself; `scan` makes those of a folder's files."""
        try:
            origin = str(path.resolve())
        except (OSError, ValueError, RuntimeError):  # copying it raises the exact error
            origin = ""
        return cls(ItemType.FILE, path, name=name, origin=origin if origin == storable(origin) else "")

    @property
    def label(self) -> str:
        """The name of the source in a list of refused sources."""
        named = self.origin if self.type is ItemType.DIRECTORY else ""
        return named or self.url or self.name or (self.path.name if self.path else "") or self.text[:60]


@dataclass(frozen=True)
class Refused:
    """A source that was not added, and the reason."""

    __pydantic_config__ = CAMEL
    path: str
    """The source's original name: the file's name, the address, or the beginning of the note."""
    error: str
    code: str
    """For programs, such as duplicate, queue_full, too_large, empty, bad_url."""
    item_id: str | None = None
    """The item that this source would duplicate."""


@dataclass
class Added:
    """The result for a list of sources. `warnings`: about added files that will take long."""

    created: list[ItemView] = field(default_factory=list)
    failed: list[Refused] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    changed: list[ItemView] = field(default_factory=list)
    """Items whose file has new content, which will be read again."""
    unchanged: int = 0
    """Files of a directory whose items are up to date."""


def add(
    context: Context,
    base_id: str,
    sources: Sequence[Source],
    progress: Progress = lambda *_: None,
    added: Added | None = None,
) -> Added:
    """Add the valid sources as items, at the end of the base's line; refused ones are in the result. `progress` gets
    the number of handled sources and of all. Raises `UserError` for an unknown base, or for the data folder of another
    database. Adds each `PORTION` of sources whole: if the caller's account has no room for its new items, they are
    refused, or, while `added` has no created or changed item, it raises `OverCap`.

    A base has one item for a file. Two sources are the same file if their real paths are equal; for uploads of one
    folder, if their names are equal; and, unless both came with folders, if their names and contents are equal. A known
    file whose content changed is read again if its source has a real path. `added`: the result to add to.
    """
    base, limits = queries.base(context, base_id), live_settings.in_force(context)
    installation.check(context.db, context.settings)
    added, seen = Added() if added is None else added, 0
    for portion in portions(sources, PORTION):
        known = _known(context, base.id, portion)
        with ExitStack() as copies:
            rows = []
            for source in portion:
                try:
                    if source.origin in known:
                        _renew(context, known[source.origin], source, limits, added)
                    else:
                        rows.append((source, _row(context, copies, source, limits, added)))
                except UserError as error:
                    added.failed.append(Refused(source.label, str(error), error.code))
                seen += 1
                progress(seen, len(sources))
            try:
                _store(context, base.id, rows, limits, added)
            except OverCap as error:
                if not (added.created or added.changed):
                    raise
                added.failed += [Refused(source.label, str(error), error.code) for source, _ in rows]
    log.info("items.added", base=base.id, created=len(added.created), failed=len(added.failed))
    return added


def _known(context: Context, base_id: str, sources: Sequence[Source]) -> dict[str, Any]:
    """Return the base's items with the real paths of these sources, by path."""
    paths = [source.origin for source in sources if source.origin]
    is_known = (ITEMS.c.base_id == base_id, ITEMS.c.deleting.is_(False), ITEMS.c.origin.in_(paths))
    # The newest row comes last and wins: older versions could create two items for one file.
    query = select(ITEMS).where(*is_known).order_by(ITEMS.c.created_at, ITEMS.c.id)
    with context.db.read() as session:
        return {row.origin: row for row in session.execute(query)} if paths else {}


def _renew(context: Context, row: Any, source: Source, limits: KnowledgeSettings, added: Added) -> None:
    """Compare a known item's file with its stored copy; if the content changed, store it and queue the item to be read
    again.

    The outcome goes to `added`: changed, unchanged, or failed as a duplicate. Raises `UserError`.
    """
    if source.path is None:
        raise UserError("name a file", code="usage")
    most = limits.max_file_mb * 1_000_000
    with files.incoming(context.settings, source.path, most, source.label) as (copy, digest, size):
        if digest != row.content_sha256:
            if not size:
                raise UserError(f"{source.label} is empty", code="empty")
            files.place(copy, files.stored_path(context.settings, row.id, digest))
            cost = workload(size, 0)
            view = service.reprocess(context, row.id, content_sha256=digest, size_bytes=size, workload=cost)
            added.changed.append(view)
            files.keep_only(context.settings, row.id, digest)
        elif source.type is ItemType.DIRECTORY:
            added.unchanged += 1
        else:
            added.failed.append(_duplicate(source, row))
    if source.group_id and not row.group_id:
        context.db.run(lambda tx: _join(tx, row.id, source))


def _join(session: Session, item_id: str, source: Source) -> None:
    """Record the path and the group of the file on an item that was added alone, if the source has them."""
    columns = {"origin": source.origin, "group_id": source.group_id, "group_name": storable(source.group_name)}
    if values := {name: value for name, value in columns.items() if value}:
        session.execute(update(ITEMS).where(ITEMS.c.id == item_id).values(**values))


def _row(
    context: Context, copies: ExitStack, source: Source, limits: KnowledgeSettings, added: Added
) -> dict[str, Any]:
    """Return the columns of an item for a valid source; store its file or note, which the end of `copies` removes if
    the item has no row by then. A large file adds a warning to `added`. Raises `UserError`."""
    row: dict[str, Any] = {
        "id": uuid4().hex[:16],
        "type": source.type,
        "status": ItemStatus.PENDING,
        "title": "",
        "url": None,
        "origin": source.origin or None,
        "group_id": source.group_id or None,
        "size_bytes": 0,
        "group_name": storable(source.group_name) or None,
        "content_sha256": None,
    }
    if source.type in {ItemType.URL, ItemType.SITEMAP}:
        url = checked_url(source.url)
        row |= {"url": url, "name": (source.name or url)[:MAX_NAME], "source_key": _key(source.type, url)}
        return row | {"workload": workload(0, len(url))}
    if source.type is ItemType.NOTE:
        return _note(context, copies, row, source, limits)
    if source.path is None:
        raise UserError("name a file", code="usage")
    copy, digest, size = copies.enter_context(
        files.incoming(context.settings, source.path, limits.max_file_mb * 1_000_000, source.label)
    )
    if not size:
        raise UserError(f"{source.label} is empty", code="empty")
    if size > limits.warn_file_mb * 1_000_000:
        added.warnings.append(f"{source.label} has {size // 1_000_000} MB: reading it will take a while")
    files.place(copy, files.stored_path(context.settings, row["id"], digest))
    copies.callback(_discard_unowned, context, row["id"])
    name = safe_filename(source.name or source.path.name)[:MAX_NAME]
    of_file = source.origin or f"{source.group_name}\n{name}\n{'' if source.group_name else digest}"
    return row | {
        "name": name,
        "content_sha256": digest,
        "size_bytes": size,
        "workload": workload(size, 0),
        "source_key": _key(source.type, of_file),
    }


def _note(
    context: Context, copies: ExitStack, row: dict[str, Any], source: Source, limits: KnowledgeSettings
) -> dict[str, Any]:
    text = storable(source.text).strip()
    if not text:
        raise UserError("the note is empty", code="empty")
    if len(text) > limits.max_chars:
        raise UserError(f"the note has more than {limits.max_chars:,} characters", code="too_large")
    content = text.encode()
    digest = hashlib.sha256(content).hexdigest()
    path = files.stored_path(context.settings, row["id"], digest)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_bytes(content)
    copies.callback(_discard_unowned, context, row["id"])
    name = " ".join((source.name or text.partition("\n")[0].lstrip("# ")).split())[:80] or "note"
    return row | {
        "name": name + ("" if name.endswith(".md") else ".md"),
        "content_sha256": digest,
        "size_bytes": 0,
        "workload": workload(0, len(text)),
        "source_key": _key(source.type, digest),
    }


def _discard_unowned(context: Context, item_id: str) -> None:
    """Remove the stored files of an item that got no row."""
    row = select(ITEMS.c.id).where(ITEMS.c.id == item_id)
    if context.db.run(lambda tx: tx.execute(row).first()) is None:
        files.remove(context.settings, item_id)


def checked_url(url: str) -> str:
    """Return an http or https address without its fragment. Raises `UserError` for any other text, for more than
    `MAX_URL` characters, or with a user name or password."""
    wanted = url.strip()
    try:
        parts = urlsplit(wanted)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or len(wanted) > MAX_URL or not wanted.isprintable() or " " in wanted:
        raise UserError(f"{wanted[:200]!r} is not an address that begins with http:// or https://", code="bad_url")
    if parts.username or parts.password:
        raise UserError("an address with a user name or a password is not fetched", code="bad_url")
    return wanted.partition("#")[0]


def _key(kind: ItemType, of: str) -> str:
    return hashlib.sha256(f"{kind}\n{of}".encode()).hexdigest()


_NUMBERS = ("attempts", "progress", "generation", "building", "chunk_count", "batches", "batches_left")
_UNTOUCHED = {**dict.fromkeys(_NUMBERS, 0), "space": "", "published_space": "", "deleting": False}
"""Columns of an item before its first step."""


def _store(
    context: Context,
    base_id: str,
    rows: Sequence[tuple[Source, dict[str, Any]]],
    limits: KnowledgeSettings,
    added: Added,
) -> None:
    """Insert the new rows in their order; refuse duplicates, and others once `max_queue_size` items wait, over all
    bases. Raises `UnknownBase`, and `OverCap`, which inserts none."""
    if not rows:
        return

    def act(tx: Tx) -> tuple[list[Any], list[Refused]]:
        base = queries.base_row(tx, base_id, lock=True)
        existing = _alike(tx, base_id, [row for _, row in rows])
        waiting = int(tx.execute(select(func.count()).select_from(ITEMS).where(IN_LINE)).scalar_one())
        new: list[dict[str, Any]] = []
        refused: list[Refused] = []
        for source, row in rows:
            other = next((known for known in existing if known.is_same(row)), None)
            if other is not None and other.id != row["id"]:
                refused.append(_duplicate(source, other))
                if not other.deleting and not other.origin:
                    _join(tx, other.id, source)
            elif waiting + len(new) >= limits.max_queue_size:
                message = f"{limits.max_queue_size:,} items wait already (knowledge.max_queue_size): add it later"
                refused.append(Refused(source.label, message, "queue_full"))
            elif other is None:
                existing.append(_Known(*(row.get(field.name, False) for field in fields(_Known))))
                position = base.next_position + len(new)
                new.append(
                    {
                        **row,
                        **_UNTOUCHED,
                        "base_id": base_id,
                        "position": position,
                        "created_at": tx.now,
                        "updated_at": tx.now,
                    }
                )
        if new:
            tx.execute(insert(ITEMS), new)
            if CALLER.get():
                parts = {row["id"]: service.estimate(context, base, row) for row in new}
                accounts.admit(tx, FLOW, parts)
            announced.note(tx, ITEMS, [row["id"] for row in new])
            service.advance(tx, base_id, len(new))
            tx.launch(FLOW, LINE)
        inserted = select(ITEMS).where(ITEMS.c.id.in_([row["id"] for _, row in rows])).order_by(ITEMS.c.position)
        return list(tx.execute(inserted)), refused

    created, refused = context.db.run(act)
    added.created += [queries.item_view(row) for row in created]
    added.failed += refused


@dataclass(frozen=True)
class _Known:
    """The columns of an item that decide whether a new source duplicates it."""

    id: str
    type: str
    name: str
    source_key: str
    content_sha256: str | None
    origin: str | None
    deleting: bool = False

    def is_same(self, row: Mapping[str, Any]) -> bool:
        """Whether a row with these columns would duplicate this item: see `add`."""
        if self.source_key == row["source_key"]:
            return True
        # Only paths identify files that came with folders, since two folders may hold equal files.
        alone = ItemType.FILE in {self.type, row["type"]}
        content = (row["name"], row["content_sha256"])
        return alone and self.content_sha256 is not None and (self.name, self.content_sha256) == content


def _alike(session: Session, base_id: str, rows: Sequence[Mapping[str, Any]]) -> list[_Known]:
    """Return the base's items that one of these rows may duplicate."""
    columns = [ITEMS.c[field.name] for field in fields(_Known)]
    keys, contents = ([row[name] for row in rows if row[name]] for name in ("source_key", "content_sha256"))
    same = or_(ITEMS.c.source_key.in_(keys), ITEMS.c.content_sha256.in_(contents))
    return [_Known(*row) for row in session.execute(select(*columns).where(ITEMS.c.base_id == base_id, same))]


def _duplicate(source: Source, other: Any) -> Refused:
    if other.deleting:
        return Refused(source.label, "the base is still deleting the same item: add it again afterwards", "deleting")
    message = f"it is in this base already, as item {other.id}; reprocess that item to read it again"
    return Refused(source.label, message, "duplicate", other.id)
