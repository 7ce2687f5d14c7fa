"""`penstock documents search`."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.engine.nouns import count
from pipeline.interfaces.cli.command import Json, ready
from pipeline.interfaces.cli.documents.catalog import Name
from pipeline.interfaces.cli.documents.document import resolved
from pipeline.interfaces.cli.output import err, escape, one_line, print_json, print_list

if TYPE_CHECKING:
    from pipeline.flows.documents.views import Hit


def search(
    words: Annotated[list[str], typer.Argument(help="Words in any script, such as: invoice march.")],
    document: Annotated[str, typer.Option(metavar="ID", help="Only in this document.")] = "",
    name: Name = "",
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most this many pages.")] = 20,
    as_json: Json = False,
) -> None:
    """Find pages by their words in all converted documents, with the passage.

    A page must contain all the words. Three letters or more also match longer words that begin with them.

    [bold]penstock documents search invoice march[/bold]
    """
    from pipeline.flows.documents.catalog import Filter
    from pipeline.operations import documents

    ready()
    only = resolved(document) if document else ""
    result = documents.search(" ".join(words), Filter(name=name), document_id=only, limit=limit)
    if as_json:
        print_json(result)
        return

    def row(hit: "Hit") -> list[str]:
        return [hit.document_id, one_line(hit.filename), str(hit.page_source), _shown(hit)]

    print_list(result.hits, ("ID?", "FILE~", "PAGE>", "TEXT"), row, as_json=False, none="Nothing found.")
    if result.any_word:
        err.print("[dim]No page has all the words: these pages have some of them.[/dim]", soft_wrap=True)
    if result.unindexed:
        err.print(
            f"[yellow]Note:[/yellow] the text of {count(result.unindexed, 'document')} is not indexed yet: "
            "`penstock up`, or beat and a worker, does it within minutes.",
            soft_wrap=True,
        )


def _shown(hit: "Hit") -> str:
    """The passage as markup, with the matching words in bold."""
    shown, done = "", 0
    for begin, end in hit.spots:
        shown += escape(hit.passage[done:begin]) + f"[bold]{escape(hit.passage[begin:end])}[/bold]"
        done = end
    return shown + escape(hit.passage[done:])
