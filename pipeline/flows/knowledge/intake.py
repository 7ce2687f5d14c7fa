"""Adding items to a base: what cannot work is refused at once, one by one, and the rest goes in line.

Source 003, "批量创建与部分失败" and "目录处理策略".
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import structlog
from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from pipeline.engine import announced
from pipeline.engine.errors import UserError
from pipeline.engine.tables import portions, storable
from pipeline.flows.knowledge import files, live_settings, queries, service
from pipeline.flows.knowledge.models import ITEMS, MAX_NAME, MAX_URL
from pipeline.flows.knowledge.rules.workload import workload
from pipeline.flows.knowledge.settings import KnowledgeSettings
from pipeline.flows.knowledge.states import ItemStatus, ItemType
from pipeline.flows.knowledge.views import ItemView
from pipeline.flows.knowledge.work.admission import IN_LINE
from pipeline.reading.source import safe_filename
from pipeline.storage import installation
from pipeline.storage.context import Context

log = structlog.get_logger(__name__)
PORTION = 100
"""Items of one transaction."""
Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class Source:
    """What an item is made of: a file's `path`, a `url` (of a page or a sitemap), or a note's `text`.

    `name`: what people know it by, where the path's own does not say. `origin`: where a directory's file really is.
    """

    type: ItemType
    path: Path | None = None
    url: str = ""
    text: str = ""
    name: str = ""
    group_id: str = ""
    group_name: str = ""
    origin: str = ""

    @property
    def label(self) -> str:
        """How it is called in a list of what failed."""
        return self.origin or self.url or self.name or (self.path.name if self.path else "") or self.text[:60]


@dataclass(frozen=True)
class Refused:
    """What was not added, and why; `item_id`: it is in the base already, as this item."""

    path: str
    error: str
    code: str
    item_id: str | None = None


@dataclass
class Added:
    """What became of the sources. `warnings`: of what was added but will take long."""

    created: list[ItemView] = field(default_factory=list)
    failed: list[Refused] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def add(context: Context, base_id: str, sources: Sequence[Source], progress: Progress = lambda *_: None) -> Added:
    """Add items at the end of the base's line, those that can be. `progress` is told now and then how many of how many
    sources are seen to. Raises `UserError` only if nothing can be added, whatever it is."""
    base, limits = queries.base(context, base_id), live_settings.in_force(context)
    installation.check(context.db, context.settings)
    added, seen = Added(), 0
    for some in portions(sources, PORTION):
        with ExitStack() as copies:
            rows = []
            for source in some:
                try:
                    rows.append((source, _row(context, copies, source, limits, added)))
                except UserError as error:
                    added.failed.append(Refused(source.label, str(error), error.code))
                seen += 1
                progress(seen, len(sources))
            _store(context, base.id, rows, limits, added)
    log.info("items.added", base=base.id, created=len(added.created), failed=len(added.failed))
    return added


def _row(
    context: Context, copies: ExitStack, source: Source, limits: KnowledgeSettings, added: Added
) -> dict[str, Any]:  # fmt: skip
    """The item's columns; its file is in its place. Raises `UserError`."""
    row: dict[str, Any] = {
        "id": uuid4().hex[:16], "type": source.type, "status": ItemStatus.PENDING, "title": "", "url": None,
        "origin": source.origin or None, "group_id": source.group_id or None, "size_bytes": 0,
        "group_name": storable(source.group_name) or None, "content_sha256": None,
    }  # fmt: skip
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
        "name": name, "content_sha256": digest, "size_bytes": size, "workload": workload(size, 0),
        "source_key": _key(source.type, of_file),
    }  # fmt: skip


def _note(
    context: Context, copies: ExitStack, row: dict[str, Any], source: Source, limits: KnowledgeSettings
) -> dict[str, Any]:  # fmt: skip
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
        "name": name + ("" if name.endswith(".md") else ".md"), "content_sha256": digest, "size_bytes": 0,
        "workload": workload(0, len(text)), "source_key": _key(source.type, digest),
    }  # fmt: skip


def _discard_unowned(context: Context, item_id: str) -> None:
    """Remove what was stored for an item that got no row."""
    mine = select(ITEMS.c.id).where(ITEMS.c.id == item_id)
    if context.db.run(lambda session: session.execute(mine).first()) is None:
        files.remove(context.settings, item_id)


def checked_url(url: str) -> str:
    """The address, if it may be fetched. Raises `UserError`."""
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


def _store(
    context: Context, base_id: str, rows: Sequence[tuple[Source, dict[str, Any]]], limits: KnowledgeSettings,
    added: Added,
) -> None:  # fmt: skip
    """Insert the rows that are new, in their order, if there is room in line."""
    if not rows:
        return

    def act(session: Session) -> tuple[list[Any], list[Refused]]:
        base = queries.base_row(session, base_id, lock=True)
        here = select(ITEMS.c.source_key, ITEMS.c.id, ITEMS.c.deleting).where(ITEMS.c.base_id == base_id)
        keys = [row["source_key"] for _, row in rows]
        there: dict[str, Any] = {
            row.source_key: row for row in session.execute(here.where(ITEMS.c.source_key.in_(keys)))
        }
        waiting = int(session.execute(select(func.count()).select_from(ITEMS).where(IN_LINE)).scalar_one())
        now = context.db.now()
        new: list[dict[str, Any]] = []
        refused: list[Refused] = []
        for source, row in rows:
            other = there.get(row["source_key"])
            if other is not None and other.id != row["id"]:
                refused.append(_duplicate(source, other))
            elif waiting + len(new) >= limits.max_queue_size:
                what = f"{limits.max_queue_size:,} items wait already (knowledge.max_queue_size): add it later"
                refused.append(Refused(source.label, what, "queue_full"))
            elif other is None:
                there[row["source_key"]] = _Here(row["id"])
                new.append({
                    **row, "base_id": base_id, "position": base.next_position + len(new), "attempts": 0, "progress": 0,
                    "generation": 0, "building": 0, "space": "", "published_space": "", "chunk_count": 0, "batches": 0,
                    "batches_left": 0, "deleting": False, "created_at": now, "updated_at": now,
                })  # fmt: skip
        if new:
            session.execute(insert(ITEMS), new)
            announced.note(session, ITEMS, [row["id"] for row in new])
            service.advance(session, base_id, len(new))
        mine = select(ITEMS).where(ITEMS.c.id.in_([row["id"] for _, row in rows])).order_by(ITEMS.c.position)
        return list(session.execute(mine)), refused

    created, refused = context.db.run(act)
    added.created += [queries.item_view(row) for row in created]
    added.failed += refused


@dataclass(frozen=True)
class _Here:
    id: str
    deleting: bool = False


def _duplicate(source: Source, other: Any) -> Refused:
    if other.deleting:
        return Refused(source.label, "the same is being deleted from this base: add it when it is gone", "deleting")
    what = f"it is in this base already, as item {other.id}; reprocess that to read it again"
    return Refused(source.label, what, "duplicate", other.id)
