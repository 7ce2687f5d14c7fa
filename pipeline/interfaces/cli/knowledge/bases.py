"""`penstock kb create`, `list`, `show`, `edit` and `delete`: bases."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.engine.nouns import count
from pipeline.interfaces.cli.command import Json, ready, warn_if_no_stack
from pipeline.interfaces.cli.ids import whole_base
from pipeline.interfaces.cli.output import confirm, err, one_line, print_json, print_list, print_pairs, state
from pipeline.interfaces.cli.times import ago

if TYPE_CHECKING:
    from pipeline.flows.knowledge.views import BaseView
    from pipeline.operations.knowledge import BaseChanges

Base = Annotated[
    str,
    typer.Argument(metavar="BASE", callback=whole_base, help="A base's name or id; `penstock kb list` lists them."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
_Provider = Annotated[
    str | None, typer.Option(help="The provider of vectors: a configured one, or 'local' for lexical vectors.")
]
_Model = Annotated[str | None, typer.Option(help="The provider's embedding model. Default: its own.")]
_Tokens = Annotated[int | None, typer.Option(help="At most this many tokens in a chunk, 32 to 8192.")]
_Overlap = Annotated[int | None, typer.Option(help="Tokens that a chunk repeats from the previous one.")]


def create(
    name: Annotated[str, typer.Argument(help="The base's name.")],
    description: Annotated[str, typer.Option(help="The base's description.")] = "",
    provider: _Provider = None,
    model: _Model = None,
    chunk_tokens: _Tokens = None,
    chunk_overlap: _Overlap = None,
    as_json: Json = False,
) -> None:
    """Create an empty base. Options that you leave out follow the settings.

    [bold]penstock kb create manuals --description "Everything about the machines"[/bold]
    """
    from pipeline.operations import knowledge

    ready()
    created = knowledge.create_base(
        name,
        description=description,
        provider=provider,
        model=model,
        chunk_tokens=chunk_tokens,
        chunk_overlap=chunk_overlap,
    )
    if as_json:
        print_json(created)
    else:
        err.print(f"{created.id} {one_line(created.name)}: created. `penstock kb add` fills it.", soft_wrap=True)


def list_(as_json: Json = False) -> None:
    """List bases, with their items by state."""
    from pipeline.operations import knowledge

    ready()
    counts, bases = knowledge.counts(), knowledge.bases()
    if as_json:
        print_json([{**vars(base), "items": counts.get(base.id, {})} for base in bases])
        return

    def row(base: "BaseView") -> list[str]:
        name = "[dim]being deleted[/dim]" if base.deleting else one_line(base.name)
        return [base.id, name, by_state(counts.get(base.id, {})), vectors(base), ago(base.updated_at)]

    print_list(
        bases,
        ("ID", "NAME~", "ITEMS", "VECTORS?", "CHANGED"),
        row,
        as_json=False,
        none="No knowledge bases. `penstock kb create NAME` makes one.",
    )


def by_state(counts: dict[str, int]) -> str:
    """The number of items by state, as markup; `none` without items."""
    return "  ".join(f"{state(name)} {number:,}" for name, number in sorted(counts.items())) or "none"


def vectors(base: "BaseView") -> str:
    """Return a base's provider and model as words for a table; of a base without a provider, that it compares words,
    not meaning."""
    if base.provider == "local":
        return "local (words, not meaning)"
    return one_line(f"{base.provider} {base.model}")


def show(base: Base, as_json: Json = False) -> None:
    """Show a base: its settings, its items by state, and its queue."""
    from pipeline.operations import knowledge

    ready()
    view = knowledge.base(base)
    counts, queue = knowledge.counts().get(view.id, {}), knowledge.queue(view.id)
    if as_json:
        print_json({**vars(view), "items": counts, "queue": vars(queue)})
        return
    orphans = f", {count(len(queue.orphan_item_ids), 'orphan')}" if queue.orphan_item_ids else ""
    rows = [
        ("id", view.id),
        ("name", one_line(view.name)),
        ("about", one_line(view.description)),
        ("vectors", vectors(view)),
        ("chunks", f"{view.chunk_tokens:,} tokens at most, {view.chunk_overlap:,} of them repeated"),
        ("items", by_state(counts)),
        ("queue", f"{queue.queue_size:,} in line, {queue.processing_count:,} under way{orphans}"),
        ("created", ago(view.created_at)),
        ("changed", ago(view.updated_at)),
    ]
    print_pairs([(name, value) for name, value in rows if value])


def edit(
    base: Base,
    name: Annotated[str | None, typer.Option(help="The base's new name.")] = None,
    description: Annotated[str | None, typer.Option(help="The base's description.")] = None,
    provider: _Provider = None,
    model: _Model = None,
    chunk_tokens: _Tokens = None,
    chunk_overlap: _Overlap = None,
    as_json: Json = False,
) -> None:
    """Change a base. Work under way continues.

    A new model or chunk size applies to items read from now on; `penstock kb reprocess --stale BASE` embeds again the
    items that another model embedded.

    [bold]penstock kb edit manuals --provider openai --model text-embedding-3-small[/bold]
    """
    from pipeline.operations import knowledge

    changes: BaseChanges = {
        "name": name,
        "description": description,
        "provider": provider,
        "model": model,
        "chunk_tokens": chunk_tokens,
        "chunk_overlap": chunk_overlap,
    }
    if all(value is None for value in changes.values()):
        raise typer.BadParameter("say what to change, such as --name NEW", param_hint="--name …")
    ready()
    edited = knowledge.edit_base(base, **changes)
    if as_json:
        print_json(edited)
        return
    err.print(f"{edited.id} {one_line(edited.name)}: changed", soft_wrap=True)
    if provider is not None or model is not None:
        err.print(
            "`penstock kb reprocess --stale BASE` embeds again the items that another model embedded.", soft_wrap=True
        )


def delete(base: Base, yes: Yes = False) -> None:
    """Delete a base with all its items. Your own files stay where they are."""
    from pipeline.operations import knowledge

    ready()
    view = knowledge.base(base)
    items = sum(knowledge.counts().get(view.id, {}).values())
    if not yes:
        confirm(f"Delete {view.name} with {count(items, 'item')}?")
    knowledge.delete_base(view.id)
    err.print(f"{view.id} {one_line(view.name)}: is being deleted", soft_wrap=True)
    warn_if_no_stack()
