"""`penstock kb …`: knowledge bases of files, web pages and notes, for search."""

from collections.abc import Callable

import typer

from pipeline.interfaces.cli.command import help_of
from pipeline.interfaces.cli.knowledge import bases, intake, items, queue, search

app = typer.Typer(
    help="Fill knowledge bases with files, web pages and notes, which are read, chunked and embedded.\n\n"
    "Start with: [bold]penstock kb create manuals[/bold], then "
    "[bold]penstock kb add manuals manual.pdf https://example.com/help --wait[/bold] "
    'and [bold]penstock kb search manuals "how do I …"[/bold].\n\n'
    "Without a provider, Penstock makes vectors itself; they match words, not meaning. "
    "PENSTOCK_KNOWLEDGE__EMBEDDINGS_PROVIDER names a provider for more; see docs/how-to/knowledge.md.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


_COMMANDS: dict[str, Callable[..., None]] = {
    "create": bases.create,
    "list": bases.list_,
    "show": bases.show,
    "edit": bases.edit,
    "delete": bases.delete,
    "add": intake.add,
    "wait": intake.wait,
    "search": search.search,
    "items": items.items,
    "item": items.item,
    "cancel": items.cancel,
    "reprocess": items.reprocess,
    "remove": items.remove,
    "status": queue.status,
    "queue": queue.queue,
    "recover": queue.recover,
    "dismiss": queue.dismiss,
    "check": queue.check,
}
for _name, _command in _COMMANDS.items():
    app.command(_name, help=help_of(_command))(_command)
