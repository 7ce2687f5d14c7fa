"""`penstock kb search`."""

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.interfaces.cli.command import Json, ready
from pipeline.interfaces.cli.ids import whole, whole_base
from pipeline.interfaces.cli.output import err, one_line, print_json, print_list
from pipeline.interfaces.cli.times import Since, moment, zone_of_here

if TYPE_CHECKING:
    from pipeline.flows.knowledge.views import Hit, Hits


def search(
    *,
    bases: Annotated[
        list[str] | None, typer.Argument(metavar="[BASE]…", callback=whole_base, help="Bases by name or id.")
    ] = None,
    words: Annotated[str, typer.Argument(help='The words or question to search, such as: "how is a lease renewed?"')],
    every: Annotated[bool, typer.Option("--all", help="Search all bases.")] = False,
    types: Annotated[
        list[str] | None, typer.Option("--type", help="Only file, url, note, sitemap or directory. Repeatable.")
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option("--group", callback=whole("knowledge", "groups"), help="Only this group, by its id. Repeatable."),
    ] = None,
    since: Since = "",
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most this many.")] = 10,
    min_score: Annotated[float, typer.Option(min=0, max=1, help="Only hits with at least this score, 0 to 1.")] = 0,
    around: Annotated[
        int, typer.Option(min=0, max=5, help="With --json: include this many chunks before and after each hit.")
    ] = 0,
    no_vectors: Annotated[bool, typer.Option("--no-vectors", help="Search by words alone, not by meaning.")] = False,
    as_json: Json = False,
) -> None:
    """Find text in knowledge bases, with its item, headings and page.

    [bold]penstock kb search manuals "how is the filter changed"[/bold]

    With an embeddings provider, a search costs one small call for each model, which needs a stack; the command
    starts one if none runs. If the provider does not answer, the search uses words alone.
    """
    if bool(bases) == every:
        raise typer.BadParameter("name bases, or give --all" if not every else "name bases or give --all, not both")
    from pipeline.operations import knowledge
    from pipeline.standalone.stack import using_stack

    settings = ready()
    begin = moment(since, zone_of_here())
    # A call passes the gate, which needs the stack.
    with using_stack(settings) if not no_vectors and knowledge.has_providers() else nullcontext():
        result = knowledge.search(
            bases or None,
            words,
            limit=limit,
            types=types,
            group_ids=groups,
            since=begin,
            min_score=min_score,
            around=around,
            by_meaning=not no_vectors,
        )
    if as_json:
        print_json(result)
    else:
        _show(result, by_meaning=not no_vectors)


def _show(result: "Hits", *, by_meaning: bool) -> None:
    def row(hit: "Hit") -> list[str]:
        place = [*([f"page {hit.page}"] if hit.page else []), *([" > ".join(hit.heading)] if hit.heading else [])]
        return [
            f"{hit.score:.2f}",
            one_line(hit.base_name, 30),
            one_line(hit.source, 60),
            one_line(", ".join(place), 80),
            one_line(hit.excerpt),
        ]

    print_list(
        result.hits, ("SCORE>", "BASE?~", "SOURCE~", "WHERE?~", "TEXT"), row, as_json=False, none="Nothing found."
    )
    if result.note:
        err.print(f"[yellow]Note:[/yellow] {one_line(result.note)}", soft_wrap=True)
    elif result.lexical and by_meaning:
        err.print(
            "[dim]Some vectors are lexical: they match words and parts of words, not meaning "
            "(PENSTOCK_KNOWLEDGE__EMBEDDINGS_PROVIDER).[/dim]",
            soft_wrap=True,
        )
