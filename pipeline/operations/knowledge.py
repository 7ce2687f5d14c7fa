"""Operations on knowledge bases: create bases, add items, command items, search."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from os import PathLike
from pathlib import Path
from typing import TypedDict, Unpack
from uuid import uuid4

from pipeline.engine.errors import UserError, told
from pipeline.engine.presence import Presence
from pipeline.flows.knowledge import check as checking
from pipeline.flows.knowledge import directory, intake, queries, service, texts
from pipeline.flows.knowledge import search as searching
from pipeline.flows.knowledge.directory import Scanned
from pipeline.flows.knowledge.flow import FLOW
from pipeline.flows.knowledge.intake import Added, Progress, Source
from pipeline.flows.knowledge.queries import UnknownItem
from pipeline.flows.knowledge.service import CancelStatus
from pipeline.flows.knowledge.settings import own
from pipeline.flows.knowledge.states import LINE, OPEN, ItemType, Loss
from pipeline.flows.knowledge.views import BaseView, Hits, ItemView
from pipeline.operations import watch as watching
from pipeline.operations.caller import Caller, owner
from pipeline.operations.documents import Skipped
from pipeline.operations.operation import acts, operation, reads
from pipeline.operations.quotas import SEARCHES
from pipeline.settings import LOCAL
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context

MAX_FILES, MAX_ITEMS = 500, 1000
"""The most items that one request adds."""
MOST_AT_ONCE = 500
"""The most items of one command."""
_Path = str | PathLike[str]


class BaseOptions(TypedDict, total=False):
    """Options of a new base. A missing or None field takes its default from the settings."""

    description: str
    provider: str | None
    model: str | None
    chunk_tokens: int | None
    chunk_overlap: int | None


class BaseChanges(TypedDict, total=False):
    """Changes of a base. A missing or None field keeps its value."""

    name: str | None
    description: str | None
    provider: str | None
    model: str | None
    chunk_tokens: int | None
    chunk_overlap: int | None


@operation(Scope.WRITE)
def create_base(caller: Caller, name: str, **options: Unpack[BaseOptions]) -> BaseView:
    """Create an empty base. Raises `UserError`, also for a name that is taken."""
    _check_model(caller, options.get("provider"), options.get("model"))
    return service.create_base(caller.context, name, **options)


@operation(Scope.WRITE)
def edit_base(caller: Caller, base_id: str, **changes: Unpack[BaseChanges]) -> BaseView:
    """Change a base: its name, or how it chunks and embeds items from now on. Items under way or embedded keep the old
    settings."""
    if changes.get("model"):
        provider = changes.get("provider") or queries.base(caller.context, base_id).provider
        _check_model(caller, provider, changes["model"])
    return service.edit_base(caller.context, base_id, **changes)


def _check_model(caller: Caller, provider: str | None, model: str | None) -> None:
    """Raise `Refused` (422) for a model that the provider's configuration does not name, except for the model that the
    settings name for knowledge."""
    configured = own(caller.context.settings)
    chosen = provider or configured.embeddings_provider or LOCAL
    if model and (chosen, model) != (configured.embeddings_provider, configured.embeddings_model):
        caller.check_model(chosen, model)


delete_base = acts(service.delete_base, Scope.WRITE)
base, bases = reads(queries.base), reads(queries.bases)
counts, chunk_counts, groups = reads(queries.counts), reads(queries.chunk_counts), reads(queries.groups)


@operation(Scope.WRITE, spends=True)
def add(caller: Caller, base_id: str, sources: Sequence[Source], progress: Progress = lambda *_: None) -> Added:
    """Add items at the end of the base's line, without waiting until they are read. The answer names the refused
    sources; the others are added."""
    return intake.add(caller.context, base_id, sources, progress)


@operation(Scope.WRITE, spends=True)
def add_uploads(caller: Caller, base_id: str, files: Sequence[tuple[Path, str]], folder: str = "") -> Added:
    """Add private copies of files, given as (path, name). `folder`: the name of their folder; its files share one group
    in the base."""
    kind, group = ItemType.FILE, ""
    if folder:
        kind = ItemType.DIRECTORY
        group = queries.group_id(caller.context, base_id, folder) or f"grp-{uuid4().hex[:12]}"
    sources = [Source(kind, path, name=name or "file", group_id=group, group_name=folder) for path, name in files]
    return intake.add(caller.context, base_id, sources)


def add_files(base_id: str, paths: _Path | Iterable[_Path]) -> Added:
    """Add a copy of one file or of several. A file that the base has by its path is read again if its content
    changed."""
    several = [paths] if isinstance(paths, str | PathLike) else paths
    return add(base_id, [Source.of_file(Path(path)) for path in several])


def add_urls(base_id: str, urls: str | Iterable[str]) -> Added:
    """Add one web page or several."""
    return add(base_id, [Source(ItemType.URL, url=url) for url in _several(urls)])


def add_sitemaps(base_id: str, urls: str | Iterable[str]) -> Added:
    """Add one sitemap or several, each with all of its pages as one item."""
    return add(base_id, [Source(ItemType.SITEMAP, url=url) for url in _several(urls)])


def add_notes(base_id: str, texts: str | Iterable[str]) -> Added:
    """Add one note or several, in Markdown."""
    return add(base_id, [Source(ItemType.NOTE, text=text) for text in _several(texts)])


def _several(values: str | Iterable[str]) -> Iterable[str]:
    return [values] if isinstance(values, str) else values


def add_directory(
    base_id: str,
    folder: _Path,
    *,
    keep_gone: bool = False,
    accept_missing: bool = False,
    progress: Progress = lambda *_: None,
) -> Scanned:
    """Add the files of a directory and its folders. If it was added before, add new files, read changed files again,
    and delete the items of missing files, unless `keep_gone`. If most files are missing, delete nothing and name the
    number in `failed`, unless `accept_missing`."""
    options = {"keep_gone": keep_gone, "accept_missing": accept_missing}
    return directory.scan(owner().context, base_id, Path(folder), **options, progress=progress)


items, matching, item, group_id = (
    reads(queries.items),
    reads(queries.matching),
    reads(queries.item),
    reads(queries.group_id),
)
tally, standings, chunks = reads(queries.tally), reads(queries.standings), reads(queries.chunks)
queue, get_status, check = reads(queries.queue), reads(queries.status), reads(checking.check)
text, original = reads(texts.text), reads(texts.original)
has_page_pictures, page_picture = reads(texts.has_page_pictures), reads(texts.page_picture)
cancel, delete = acts(service.cancel, Scope.WRITE), acts(service.delete_items, Scope.WRITE)
dismiss = acts(service.dismiss, Scope.WRITE)


@operation(Scope.WRITE, spends=True)
def reprocess(caller: Caller, item_id: str, *, accept_missing: bool = False) -> ItemView:
    """Put an item in line to be read and embedded again. Searches find the old chunks until the new ones are complete.
    `accept_missing`: the pages that a sitemap has lost are gone, even if they are most."""
    return service.reprocess(caller.context, item_id, loss=Loss.ACCEPTED if accept_missing else None)


@operation(Scope.WRITE, spends=True)
def reprocess_failed(caller: Caller, base_id: str) -> list[ItemView]:
    """Put every failed item of a base in line to be read again; return the items."""
    return _reprocess_all(caller, service.failed(caller.context, base_id))


@operation(Scope.WRITE, spends=True)
def reprocess_stale(caller: Caller, base_id: str) -> list[ItemView]:
    """Put the items that another model than the base's current one embedded in line to be read and embedded again;
    return them."""
    return _reprocess_all(caller, service.stale(caller.context, base_id))


def _reprocess_all(caller: Caller, item_ids: Iterable[str]) -> list[ItemView]:
    """Put each of these items in line, without items deleted at the same time; return their views."""
    views = []
    for item_id in item_ids:
        with suppress(UnknownItem):
            views.append(service.reprocess(caller.context, item_id))
    return views


class Verb(StrEnum):
    """A command for many items at once."""

    REPROCESS = "reprocess"
    CANCEL = "cancel"
    DELETE = "delete"


@operation(Scope.WRITE)
def act(caller: Caller, verb: Verb, base_id: str, item_ids: Iterable[str]) -> tuple[int, list[Skipped]]:
    """Apply a command to each of these items of a base, each in its own transaction, or delete all in one; return how
    many it changed, and the skipped ones with the reasons.

    Raises `OverCap` for `reprocess`, if the caller has spent its cap.
    """
    context, done, skipped = caller.context, list[str](), list[Skipped]()
    if verb is Verb.REPROCESS:
        caller.check_spending()
    of_base = queries.base(context, base_id).id
    for item_id in item_ids:
        try:
            _act(context, verb, of_base, item_id)
            done.append(item_id)
        except UserError as error:
            skipped.append(Skipped(item_id, told(error)))
    if verb is Verb.DELETE and done:
        service.delete_items(context, *done)
    return len(done), skipped


def _act(context: Context, verb: Verb, base_id: str, item_id: str) -> None:
    if queries.item(context, item_id).base_id != base_id:
        raise UnknownItem(item_id)
    if verb is Verb.REPROCESS:
        service.reprocess(context, item_id)
    elif verb is Verb.CANCEL and service.cancel(context, item_id) is CancelStatus.IGNORED:
        raise UserError("it has already ended", code="idle")


class SearchOptions(TypedDict, total=False):
    """Options of a search."""

    limit: int
    types: Sequence[str] | None
    item_ids: Sequence[str] | None
    group_ids: Sequence[str] | None
    since: datetime | None
    min_score: float | None
    around: int
    """The number of chunks to add before and after each hit."""
    by_meaning: bool
    """False: search by words alone."""


@operation(Scope.READ, places=SEARCHES)
def search(caller: Caller, bases: str | Sequence[str] | None, words: str, **options: Unpack[SearchOptions]) -> Hits:
    """Search chunks of one base or several, by name or id, or of all bases (None); best first. Raises `OverCap` if a
    search by meaning costs money and the caller has spent its cap."""
    several = [bases] if isinstance(bases, str) else bases
    if caller.quotas is not None and options.get("by_meaning", True) and searching.asks(caller.context, several):
        caller.check_spending()
    return searching.search(caller.context, several, words, **options)


asks = reads(searching.asks)


def has_providers() -> bool:
    """Whether the settings name a provider for vectors of knowledge, besides the local one."""
    return bool(own(owner().context.settings).providers)


@operation(Scope.WRITE)
def recover(caller: Caller, base_id: str) -> list[str]:
    """Send the missing messages of the base's orphans, open items that no message and no worker has; return their ids.
    The sweep does so too, seconds later.

    Gives back the claims of dead processes. Like the sweep, it checks presence twice, which takes a moment.
    """
    context, line = caller.context, queries.queue(caller.context, base_id)
    if dead := _dead(context, service.held_up(context, line.base_id)):
        FLOW.free_lost(context, dead)
    context.db.run(lambda tx: tx.launch(FLOW.name, LINE, *line.orphan_item_ids))
    return line.orphan_item_ids


def _dead(context: Context, processes: Iterable[str]) -> set[str]:
    """The processes among these that are absent twice in a row: Redis may just have been emptied."""
    absent = set(processes) if context.online else set[str]()
    for wait_s in (0.0, 1.5 * context.settings.presence_interval_s):
        if absent:
            time.sleep(wait_s)
            absent -= Presence(context.redis).living(absent)
    return absent


def wait(base_id: str, timeout_s: float | None = None, idle: Callable[[], object] = lambda: None) -> dict[str, int]:
    """Wait until no item of a base is open; return the numbers by state. Calls `idle` about once a second.

    Warns (`NoWorkerWarning`) if no worker runs. Raises `TimeoutError` after `timeout_s` seconds.
    """
    id_ = base(base_id).id
    *_, counted = watching.watch(
        lambda: counts([id_]).get(id_, {}),
        lambda counted: sum(counted.get(state, 0) for state in OPEN),
        lambda event: event.get("flow") == FLOW.name,
        undone=(f"item of {base_id} is open", f"items of {base_id} are open"),
        timeout_s=timeout_s,
        idle=idle,
    )
    return counted
