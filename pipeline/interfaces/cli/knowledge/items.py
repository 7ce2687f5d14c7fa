"""`penstock kb items`, `item`, `cancel`, `reprocess` and `remove`: items of bases."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.engine.errors import UserError
from pipeline.engine.nouns import count
from pipeline.interfaces.cli.command import Json, Limit, ready, warn_if_no_stack
from pipeline.interfaces.cli.ids import whole, whole_base
from pipeline.interfaces.cli.knowledge.bases import Base, Yes
from pipeline.interfaces.cli.output import (
    confirm,
    err,
    escape,
    one_line,
    out,
    print_json,
    print_list,
    print_pairs,
    state,
)
from pipeline.interfaces.cli.times import ago

if TYPE_CHECKING:
    from pipeline.flows.knowledge.views import ItemView, Standing

FAILED, PARTIAL = 1, 3
WHOLE_ITEM = whole("knowledge", "items")
Items = Annotated[
    list[str],
    typer.Argument(metavar="ITEM…", callback=WHOLE_ITEM, help="Ids of items, as `penstock kb items` lists them."),
]
_WORDS = {
    "in_line": "waits in line",
    "queued": "waits for a worker",
    "running": "running",
    "waiting": "waiting for a retry",
    "stalled": "stalled: no worker has it. `penstock up` or `penstock kb recover` continues it",
}


def items(
    base: Base,
    status: Annotated[
        list[str] | None, typer.Option(help="Only items in this state, such as failed. Repeatable.")
    ] = None,
    type_: Annotated[list[str] | None, typer.Option("--type", help="Only items of this type, such as url.")] = None,
    group: Annotated[
        str,
        typer.Option(metavar="ID", callback=whole("knowledge", "groups"), help="Only items of this folder, by its id."),
    ] = "",
    match: Annotated[str, typer.Option(help="Only items with this text in name or title.")] = "",
    limit: Limit = 200,
    as_json: Json = False,
) -> None:
    """List the items of a base in the order of its queue, the oldest first.

    [bold]penstock kb items manuals --status failed[/bold]
    """
    from pipeline.flows.knowledge.states import ItemStatus, ItemType
    from pipeline.operations import knowledge

    states = _one_of(ItemStatus, status, "--status")
    types = _one_of(ItemType, type_, "--type")
    ready()
    views = knowledge.items(base, status=states, types=types, group_id=group, words=match, limit=limit)
    folders = any(view.group_name for view in views)

    def row(view: "ItemView") -> list[str]:
        cells = [
            view.id,
            shown_state(view),
            progress(view),
            view.type.value,
            one_line(view.name),
            f"{view.chunk_count:,}",
            one_line(view.error or view.warning),
        ]
        return [*cells[:5], one_line(view.group_name), *cells[5:]] if folders else cells

    columns = ["ID", "STATE", "PROGRESS>?", "TYPE?", "NAME~", *(["FOLDER~?"] if folders else []), "CHUNKS>?", "ERROR"]
    filtered = states or types or group or match
    none = "No item matches." if filtered else "No items. `penstock kb add` adds some."
    print_list(views, columns, row, as_json=as_json, none=none)


def _one_of(kind: type[StrEnum], values: Sequence[str] | None, option: str) -> list[str]:
    names = [value.lower() for value in values or ()]
    if any(value not in set(kind) for value in names):
        raise typer.BadParameter(f"choose from {', '.join(kind)}", param_hint=option)
    return names


def shown_state(view: "ItemView") -> str:
    """An item's state as markup, or that it is being deleted."""
    if view.deleting:
        return "[dim]deleting[/dim]"
    return "[red]failed[/red]" if view.status.value == "failed" else state(view.status.value)


def progress(view: "ItemView") -> str:
    """An item's progress, such as `40 %`; empty once it is being deleted."""
    return "" if view.deleting else f"{view.progress} %"


def item(
    item_id: Annotated[str, typer.Argument(metavar="ITEM", callback=WHOLE_ITEM, help="An item's id.")],
    chunks: Annotated[bool, typer.Option("--chunks", help="Show its chunks, with headings, pages and places.")] = False,
    text: Annotated[bool, typer.Option("--text", help="Print only the text that was read from it.")] = False,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """Show everything about an item, and its current step."""
    from pipeline.operations import knowledge

    ready()
    if text:
        _print_text(item_id)
        return
    view = knowledge.item(item_id)
    standing = knowledge.standings([item_id]).get(item_id)
    pieces = knowledge.chunks(item_id, limit=limit) if chunks else []
    if as_json:
        print_json({**vars(view), "standing": standing, **({"chunks": pieces} if chunks else {})})
        return
    folder = f"{one_line(view.group_name)} ({one_line(view.group_id)})" if view.group_id else ""
    searchable = f"{view.chunk_count:,} chunks, vectors by {one_line(view.published_space)}" if view.generation else ""
    rows = [
        ("item", view.id),
        ("base", view.base_id),
        ("type", view.type.value),
        ("name", one_line(view.name)),
        ("title", one_line(view.title)),
        ("address", one_line(view.url)),
        ("folder", folder),
        ("size", f"{view.size_bytes:,} bytes" if view.size_bytes else ""),
        ("state", shown_state(view)),
        ("progress", progress(view)),
        ("now", activity(standing) if standing else ""),
        ("error", one_line(view.error)),
        ("warning", one_line(view.warning)),
        ("searchable", searchable or "not yet"),
        ("added", ago(view.created_at)),
        ("changed", ago(view.updated_at)),
    ]
    print_pairs([(name, value) for name, value in rows if value])
    for piece in pieces:
        where = [f"page {piece.page}"] if piece.page else []
        where += [count(piece.tokens, "token"), f"characters {piece.start:,} to {piece.end:,}"]
        where += [piece.source] if piece.source else []
        out.print(
            f"\n[bold]{piece.number}[/bold]  {one_line(' > '.join(piece.heading))}  [dim]{one_line(', '.join(where))}"
            "[/dim]",
            soft_wrap=True,
        )
        out.print(escape(piece.text), soft_wrap=True)


def _print_text(item_id: str) -> None:
    from pipeline.operations import knowledge

    knowledge.item(item_id)
    start, total = 0, 1
    while start < total:
        part = knowledge.text(item_id, start=start)
        out.print(escape(part.text), end="", soft_wrap=True)
        start, total = part.end, part.total
    out.print()


def activity(standing: "Standing") -> str:
    """An item's current step in words, as markup, with its place in line and the reason why it waits."""
    words = _WORDS[standing.activity.value]
    place = f", number {standing.place:,} of its base" if standing.place else ""
    return words + place + (f": {one_line(standing.reason)}" if standing.reason else "")


def cancel(item_ids: Items) -> None:
    """Stop unfinished items: they fail with the error `Cancelled`. Their searchable text stays."""
    from pipeline.flows.knowledge.service import CancelStatus
    from pipeline.operations import knowledge

    ready()

    def act(item_id: str) -> str:
        ignored = knowledge.cancel(item_id) is CancelStatus.IGNORED
        return "had already ended: ignored" if ignored else "cancelled"

    _each(item_ids, act)


def reprocess(
    item_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ITEM]…", callback=WHOLE_ITEM, help="Ids of items.")
    ] = None,
    failed: Annotated[
        str, typer.Option(metavar="BASE", callback=whole_base, help="Every failed item of this base.")
    ] = "",
    stale: Annotated[
        str,
        typer.Option(metavar="BASE", callback=whole_base, help="Items of this base that another model embedded."),
    ] = "",
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="For items by id: accept that most pages of a sitemap are missing.")
    ] = False,
) -> None:
    """Read and embed items again. Search keeps finding their old text until that is done.

    If all pages of a sitemap are missing, or more than half of four or more, it fails and keeps its text; --yes reads
    it without them.

    [bold]penstock kb reprocess --failed manuals[/bold]
    """
    from pipeline.operations import knowledge

    if bool(item_ids) + bool(failed) + bool(stale) != 1:
        raise typer.BadParameter("name items, or one base with --failed or --stale", param_hint="ITEM")
    ready()
    if item_ids:

        def read_again(item_id: str) -> str:
            return f"{one_line(knowledge.reprocess(item_id, accept_missing=yes).name)}: will be read again"

        _each(item_ids, read_again)
    else:
        done = knowledge.reprocess_failed(failed) if failed else knowledge.reprocess_stale(stale)
        err.print(f"{count(len(done), 'item')} will be read again." if done else "Nothing to do.")
        if not done:
            return
    warn_if_no_stack()


def remove(item_ids: Items, yes: Yes = False) -> None:
    """Remove items from their base, with their texts, vectors and stored copies. Your own files stay where they are."""
    from pipeline.operations import knowledge

    ready()
    views = [knowledge.item(item_id) for item_id in dict.fromkeys(item_ids)]
    if not yes:
        names = ", ".join(view.name for view in views[:5]) + (" …" if len(views) > 5 else "")
        confirm(f"Remove {names}?")
    knowledge.delete(*(view.id for view in views))
    for view in views:
        err.print(f"{view.id} {one_line(view.name)}: is being deleted", soft_wrap=True)
    warn_if_no_stack()


def _each(item_ids: Sequence[str], act: Callable[[str], Any]) -> None:
    """Act on each item, and report failures; they make the exit code 3, or 1 if all fail."""
    refused, wanted = 0, list(dict.fromkeys(item_ids))
    for item_id in wanted:
        try:
            err.print(f"{one_line(item_id)}: {act(item_id)}", soft_wrap=True)
        except UserError as error:
            err.print(f"[red]{one_line(str(error))}[/red]", soft_wrap=True)
            refused += 1
    if refused:
        raise typer.Exit(PARTIAL if refused < len(wanted) else FAILED)
