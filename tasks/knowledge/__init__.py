"""The Python API of knowledge bases.

>>> from tasks import knowledge
>>> base = knowledge.create_base("manuals")
>>> added = knowledge.add_files(base.id, ["manual.pdf", "faq.docx"])
>>> knowledge.wait(base.id)
>>> knowledge.add_urls(base.id, ["https://example.com/help"])

Every function returns plain typed objects. All raise `UserError` with a message for people.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import TypedDict, Unpack

from pipeline.engine.errors import NoWorkerWarning, UserError
from pipeline.engine.logs import configure_as_library
from pipeline.engine.presence import Presence
from pipeline.flows.knowledge import check as checking
from pipeline.flows.knowledge import directory, intake, queries, service, texts
from pipeline.flows.knowledge import search as searching
from pipeline.flows.knowledge.check import Report
from pipeline.flows.knowledge.directory import Scanned
from pipeline.flows.knowledge.flow import FLOW
from pipeline.flows.knowledge.intake import Added, Progress, Refused, Source
from pipeline.flows.knowledge.plan import LINE, removal_of
from pipeline.flows.knowledge.queries import UnknownBase, UnknownItem
from pipeline.flows.knowledge.service import CancelStatus
from pipeline.flows.knowledge.settings import own
from pipeline.flows.knowledge.states import OPEN, ItemStatus, ItemType
from pipeline.flows.knowledge.views import (
    Activity,
    BaseView,
    ChunkView,
    FlowStatus,
    Found,
    Hit,
    ItemView,
    Original,
    QueueStatus,
    Standing,
    Tally,
    TextView,
)
from pipeline.operations import watch as watching
from tasks.context import get_context
from tasks.knowledge.canvas import TASKS

__all__ = [
    "Activity",
    "Added",
    "BaseChanges",
    "BaseOptions",
    "BaseView",
    "CancelStatus",
    "ChunkView",
    "FlowStatus",
    "Found",
    "Hit",
    "ItemStatus",
    "ItemType",
    "ItemView",
    "NoWorkerWarning",
    "Original",
    "QueueStatus",
    "Refused",
    "Report",
    "Scanned",
    "SearchOptions",
    "Source",
    "Standing",
    "Tally",
    "TextView",
    "UnknownBase",
    "UnknownItem",
    "UserError",
    "Which",
    "add",
    "add_directory",
    "add_files",
    "add_notes",
    "add_sitemaps",
    "add_urls",
    "asks",
    "base",
    "bases",
    "cancel",
    "check",
    "chunk_counts",
    "chunks",
    "counts",
    "create_base",
    "delete",
    "delete_base",
    "dismiss",
    "edit_base",
    "get_status",
    "group_id",
    "has_page_pictures",
    "has_providers",
    "item",
    "items",
    "matching",
    "original",
    "page_picture",
    "queue",
    "recover",
    "reprocess",
    "reprocess_failed",
    "reprocess_stale",
    "search",
    "standings",
    "tally",
    "text",
    "wait",
]

configure_as_library()


class BaseOptions(TypedDict, total=False):
    """What one may say of a new base; what is left out, or None, is as the settings say."""

    description: str
    provider: str | None
    model: str | None
    chunk_tokens: int | None
    chunk_overlap: int | None


class BaseChanges(TypedDict, total=False):
    """What one may change of a base; what is left out, or None, stays as it is."""

    name: str | None
    description: str | None
    provider: str | None
    model: str | None
    chunk_tokens: int | None
    chunk_overlap: int | None


def create_base(name: str, **options: Unpack[BaseOptions]) -> BaseView:
    """A new, empty base."""
    return service.create_base(get_context(), name, **options)


def edit_base(base_id: str, **changes: Unpack[BaseChanges]) -> BaseView:
    """Change a base. What is under way is not disturbed."""
    return service.edit_base(get_context(), base_id, **changes)


def delete_base(base_id: str) -> None:
    """Delete a base with all of its items."""
    TASKS.launch(removal_of(service.delete_base(get_context(), base_id)))


def base(name_or_id: str) -> BaseView:
    """A base by its id or its name. Raises `UnknownBase`."""
    return queries.base(get_context(), name_or_id)


def bases() -> list[BaseView]:
    """Every base, by name."""
    return queries.bases(get_context())


def add(base_id: str, sources: Sequence[Source], progress: Progress = lambda *_: None) -> Added:
    """Add items; those that cannot be added are told, and do not keep the others from it."""
    added = intake.add(get_context(), base_id, sources, progress)
    if added.created or added.changed:
        TASKS.launch(LINE)
    return added


def add_files(base_id: str, paths: str | PathLike[str] | Iterable[str | PathLike[str]]) -> Added:
    """Add files, or one, of which copies are kept. A file that is in the base and has changed is read again."""
    several = [paths] if isinstance(paths, str | PathLike) else paths
    return add(base_id, [Source.of_file(Path(path)) for path in several])


def add_urls(base_id: str, urls: str | Iterable[str]) -> Added:
    """Add web pages, or one."""
    return add(base_id, [Source(ItemType.URL, url=url) for url in _several(urls)])


def add_sitemaps(base_id: str, urls: str | Iterable[str]) -> Added:
    """Add sitemaps, or one, each with all of its pages as one item."""
    return add(base_id, [Source(ItemType.SITEMAP, url=url) for url in _several(urls)])


def add_notes(base_id: str, texts: str | Iterable[str]) -> Added:
    """Add notes, or one, in Markdown."""
    return add(base_id, [Source(ItemType.NOTE, text=text) for text in _several(texts)])


def _several(given: str | Iterable[str]) -> Iterable[str]:
    return [given] if isinstance(given, str) else given


def add_directory(
    base_id: str,
    folder: str | PathLike[str],
    *,
    keep_gone: bool = False,
    progress: Progress = lambda *_: None,
) -> Scanned:
    """Add the files of a directory and its folders. If it was added before, apply the changes since then."""
    scanned = directory.scan(get_context(), base_id, Path(folder), keep_gone=keep_gone, progress=progress)
    TASKS.launch(LINE, *([removal_of(base(base_id).id)] if scanned.gone else []))
    return scanned


def item(item_id: str) -> ItemView:
    """An item as it is now. Raises `UnknownItem`."""
    return queries.item(get_context(), item_id)


class Which(TypedDict, total=False):
    """Which items of a base; what is left out matches all."""

    status: Sequence[str]
    types: Sequence[str]
    group_id: str
    words: str
    limit: int


def items(base_id: str, *, after: tuple[int, str] | None = None, **which: Unpack[Which]) -> list[ItemView]:
    """Items of a base in the order of its line. `after`: beyond the one of this position and id."""
    return queries.items(get_context(), base(base_id).id, after=after, **which)


def chunks(item_id: str, *, first: int = 0, limit: int = 200) -> list[ChunkView]:
    """The chunks of an item that are searched, in the order of its text, from number `first` on."""
    return queries.chunks(get_context(), item_id, first=first, limit=limit)


def text(item_id: str, *, start: int = 0, limit: int = 100_000) -> TextView:
    """The text that was read of an item, from character `start` on."""
    return texts.text(get_context(), item_id, start=start, limit=limit)


def original(item_id: str) -> Original:
    """The stored copy of an item's file or note. Raises `UserError` if none is kept."""
    return texts.original(get_context(), item_id)


def has_page_pictures(item_id: str) -> bool:
    """Whether pages of an item can be shown as pictures."""
    return texts.has_page_pictures(get_context(), item_id)


def page_picture(item_id: str, page: int, width: int = 1000, wanted: Callable[[], bool] = lambda: True) -> bytes:
    """A page of an item's kept copy, as a WebP of at most this width. Raises `UserError`."""
    return texts.page_picture(get_context(), item_id, page, width, wanted)


def counts() -> dict[str, dict[str, int]]:
    """How many items of each base, by its id, are in which state."""
    return queries.counts(get_context())


def chunk_counts() -> dict[str, int]:
    """How many chunks of each base, by its id, are searched."""
    return queries.chunk_counts(get_context())


def matching(base_id: str, *, after: str = "", **which: Unpack[Which]) -> tuple[list[str], int]:
    """(ids of items that can be acted on, beyond the id `after`; how many match in all)."""
    return queries.matching(get_context(), base(base_id).id, after=after, **which)


def group_id(base_id: str, name: str) -> str:
    """The id of the base's folder of this name; empty if there is none."""
    return queries.group_id(get_context(), base_id, name)


def tally(base_id: str, item_ids: Sequence[str] | None = None) -> Tally:
    """How far the items of a base are, or these of them."""
    return queries.tally(get_context(), base(base_id).id, item_ids)


def cancel(item_id: str) -> CancelStatus:
    """Stop an item; `ignored` if it had ended."""
    found = service.cancel(get_context(), item_id)
    _told([item_id])
    return found


def reprocess(item_id: str) -> ItemView:
    """Read and embed an item again. Searches find the old chunks until the new ones are complete."""
    view = service.reprocess(get_context(), item_id)
    _told([item_id])
    return view


def reprocess_failed(base_id: str) -> list[ItemView]:
    """Read every failed item of a base again."""
    return [reprocess(item_id) for item_id in service.failed(get_context(), base_id)]


def reprocess_stale(base_id: str) -> list[ItemView]:
    """Embed again what another model embedded than the base names now."""
    return [reprocess(item_id) for item_id in service.stale(get_context(), base_id)]


def delete(*item_ids: str) -> int:
    """Delete items with all that was made of them; of how many bases. Those that are gone are passed by."""
    found = service.delete_items(get_context(), item_ids)
    TASKS.launch(LINE, *map(removal_of, found))
    return len(found)


def _told(item_ids: Iterable[str]) -> None:
    for item_id in item_ids:
        TASKS.announce(item_id)
    TASKS.launch(LINE)


class SearchOptions(TypedDict, total=False):
    """How to search."""

    limit: int
    types: Sequence[str] | None
    item_ids: Sequence[str] | None
    group_ids: Sequence[str] | None
    since: datetime | None
    min_score: float | None
    around: int
    """With so many chunks before and after each."""
    by_meaning: bool
    """False: by words alone."""


def search(bases: str | Sequence[str] | None, words: str, **options: Unpack[SearchOptions]) -> Found:
    """Chunks for these words, best first, of one base or several, by name or id; None: of all bases."""
    return searching.search(get_context(), [bases] if isinstance(bases, str) else bases, words, **options)


def asks(bases: Sequence[str] | None) -> list[str]:
    """The models that a search by meaning of these bases asks for a vector; none: it costs nothing."""
    return searching.asks(get_context(), bases)


def has_providers() -> bool:
    """Whether any provider but the local one makes vectors of knowledge."""
    return bool(own(get_context().settings).providers)


def queue(base_id: str) -> QueueStatus:
    """What waits, what is under way, and what nobody is at."""
    return queries.queue(get_context(), base(base_id).id)


def get_status() -> FlowStatus:
    """The queues of all bases."""
    return queries.status(get_context())


def standings(item_ids: Sequence[str]) -> dict[str, Standing]:
    """What open items are doing just now, by id."""
    return queries.standings(get_context(), item_ids)


def recover(base_id: str) -> list[str]:
    """Send the base's orphans on their way again; their ids. The sweeper does so by itself, seconds later.

    What processes hold that are gone is given back. They are looked for twice, as by the sweeper: that takes a moment.
    """
    context, orphans = get_context(), queue(base_id).orphan_item_ids
    if gone := _gone(service.held_up(context, base(base_id).id)):
        FLOW.free_lost(context, gone)
    TASKS.launch(LINE, *orphans)
    return orphans


def _gone(processes: Iterable[str]) -> set[str]:
    """Those of these processes that are absent twice in a row: Redis may just have been emptied."""
    context, absent = get_context(), set(processes)
    if not context.online:
        return set()
    presence = Presence(context.redis)
    for wait_s in (0.0, 1.5 * context.settings.presence_interval_s):
        if absent:
            time.sleep(wait_s)
            absent -= presence.living(absent)
    return absent


def dismiss(base_id: str, item_ids: Sequence[str]) -> list[str]:
    """Give up orphans of a base: they fail. The ids of those that did."""
    given_up = service.dismiss(get_context(), base(base_id).id, item_ids)
    _told(given_up)
    return given_up


def check() -> Report:
    """Whether any chunk or vector is left of what is gone."""
    return checking.check(get_context())


def wait(base_id: str, timeout_s: float | None = None, idle: Callable[[], object] = lambda: None) -> dict[str, int]:
    """Wait until no item of a base is open; how many are in which state. `idle` is called about once a second.

    Warns (`NoWorkerWarning`) if there is nobody to work. Raises `TimeoutError` after `timeout_s` seconds.
    """
    found = base(base_id).id
    *_, counted = watching.watch(
        lambda: queries.counts(get_context(), [found]).get(found, {}),
        lambda counted: sum(counted.get(state, 0) for state in OPEN),
        lambda event: event.get("flow") == FLOW.name,
        undone=(f"item of {base_id} is open", f"items of {base_id} are open"),
        timeout_s=timeout_s,
        idle=idle,
    )
    return counted
