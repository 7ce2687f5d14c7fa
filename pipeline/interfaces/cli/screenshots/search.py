"""`penstock screenshots search` and `timeline`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.engine.nouns import count
from pipeline.interfaces.cli.command import Json, ready
from pipeline.interfaces.cli.ids import whole
from pipeline.interfaces.cli.output import err, one_line, out, print_json, print_list
from pipeline.interfaces.cli.screenshots import ids
from pipeline.interfaces.cli.times import Since, Until, local, moment

if TYPE_CHECKING:
    from pipeline.flows.screenshots.views import Hit, SearchResult

App = Annotated[str, typer.Option(help="Only frames of this program, such as Firefox.")]


def search(
    words: Annotated[list[str], typer.Argument(help="Words in any script, such as: invoice march.")],
    since: Since = "",
    app: App = "",
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most this many.")] = 10,
    as_json: Json = False,
) -> None:
    """Find what happened, by words and, with an embeddings provider, by meaning.

    [bold]penstock screenshots search "database pool" --since 2d --app Code[/bold]

    It also shows how much is indexed. With an embeddings provider, a search costs one small call, which needs a stack;
    the command starts one if none runs. If the provider does not answer, the search uses words alone.
    """
    from pipeline.operations import screenshots
    from pipeline.standalone.stack import using_stack

    settings = ready()
    begin, sought = moment(since, screenshots.time_zone()), " ".join(words)
    if settings.screenshots.embeddings_provider:
        # The call passes the gate, which needs the stack.
        with using_stack(settings):
            result = screenshots.search(sought, begin, app, limit)
    else:
        result = screenshots.search(sought, begin, app, limit)
    if as_json:
        print_json(result)
    else:
        _show_result(result)


def _show_result(result: "SearchResult") -> None:
    from pipeline.operations import screenshots

    zone = screenshots.time_zone()

    def row(hit: "Hit") -> list[str]:
        frame = " ".join(filter(None, (ids.frame(hit.shot_id), Path(hit.original_path).name)))
        text = f"({frame}) {hit.excerpt}" if hit.excerpt else hit.node.summary
        return [
            ids.node(hit.node.id),
            local(hit.node.event_time, zone)[:16],
            hit.node.kind.value,
            one_line(", ".join(hit.apps), 40),
            one_line(hit.node.title + (f" — {text}" if text else ""), 200),
        ]

    print_list(result.hits, ("ID", "WHEN", "KIND?", "APP~?", "WHAT"), row, as_json=False, none="Nothing found.")
    shots, vectors = result.screenshots, result.vectors
    err.print(
        f"[dim]Indexed: {count(shots.done, 'screenshot')} ({shots.waiting:,} waiting, {shots.failed:,} failed); "
        f"vectors of {count(vectors.done, 'node')} ({vectors.waiting:,} waiting, {vectors.failed:,} failed).[/dim]",
        soft_wrap=True,
    )
    if result.note:
        err.print(f"[yellow]Note:[/yellow] {one_line(result.note)}", soft_wrap=True)
    elif result.lexical:
        err.print(
            "[dim]Vectors are lexical only: no embeddings provider is configured, so search knows words and parts of "
            "words but not their meaning (PENSTOCK_SCREENSHOTS__EMBEDDINGS_PROVIDER).[/dim]",
            soft_wrap=True,
        )


def timeline(
    since: Since = "",
    until: Until = "",
    thread: Annotated[
        str, typer.Option(callback=whole("screenshots", "threads"), help="Only this thread, by its id.")
    ] = "",
    derived: Annotated[
        bool, typer.Option("--derived", help="Include knowledge, state, procedures and plans, not only events.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many nodes, the latest.")] = 200,
    as_json: Json = False,
) -> None:
    """Show what happened, hour by hour and thread by thread.

    [bold]penstock screenshots timeline --since today[/bold]
    """
    from pipeline.operations import screenshots

    ready()
    zone = screenshots.time_zone()
    hours = screenshots.timeline(
        since=moment(since, zone), until=moment(until, zone, "--until"), thread=thread, derived=derived, limit=limit
    )
    if as_json:
        print_json(hours)
        return
    if not hours:
        err.print("Nothing on record for that time. `penstock screenshots status` shows waiting frames.")
    current_hour = None
    for hour in hours:
        if hour.begins_at != current_hour:
            current_hour = hour.begins_at
            out.print(f"[bold]{current_hour.strftime('%Y-%m-%d %H:00')}[/bold]")
        name = one_line(hour.thread_title, 80) or "no thread"
        out.print(f"  [bold]{name}[/bold]  [dim]{one_line(hour.thread_id or '')}[/dim]", soft_wrap=True)
        for node in hour.nodes:
            text = node.title + (f" — {node.summary}" if node.summary else "")
            kind = "" if node.kind.value == "event" else f"{node.kind.value}: "
            line = f"    {local(node.event_time, zone)[11:16]}  {ids.node(node.id):>5}  {kind}{one_line(text, 200)}"
            out.print(line, soft_wrap=True)
