"""`penstock search`: documents, knowledge bases and screenshots at once."""

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.interfaces.cli.command import Json, ready
from pipeline.interfaces.cli.output import err, one_line, print_json, print_list
from pipeline.interfaces.cli.screenshots import ids

if TYPE_CHECKING:
    from pipeline.operations.search import Hit


def search(
    words: Annotated[list[str], typer.Argument(help="Words in any script, or a question.")],
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most this many from each flow: documents, …")] = 8,
    no_vectors: Annotated[
        bool, typer.Option("--no-vectors", help="By words alone, without a provider's vectors.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Find words in converted documents, knowledge bases and screenshots at once.

    [bold]penstock search invoice march[/bold]

    The results alternate between the three, the best of each first. `penstock documents search`, `penstock kb search`
    and `penstock screenshots search` search one of them, with filters. With an embeddings provider, a search costs one
    small call, which needs a stack; the command starts one if none runs.
    """
    from pipeline.operations import knowledge
    from pipeline.operations.search import search as everything
    from pipeline.standalone.stack import using_stack

    settings = ready()
    paid = not no_vectors and (knowledge.asks(None) or settings.screenshots.embeddings_provider)
    with using_stack(settings) if paid else nullcontext():
        result = everything(" ".join(words), each=limit, by_meaning=not no_vectors)
    if as_json:
        print_json(result)
        return

    def row(hit: "Hit") -> list[str]:
        subject = ids.node(hit.number) if hit.flow == "screenshots" else hit.subject
        return [hit.flow, subject, one_line(hit.title, 60), one_line(hit.excerpt)]

    print_list(result.hits, ("IN", "ID?", "WHERE~", "TEXT"), row, as_json=False, none="Nothing found.")
    for note in result.notes:
        err.print(f"[yellow]Note:[/yellow] {one_line(note)}", soft_wrap=True)
