"""`penstock events`: past events, and new ones as they come."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.interfaces.cli.command import Json, Limit, ready
from pipeline.interfaces.cli.ids import whole_scope
from pipeline.interfaces.cli.output import one_line, out, print_json, print_list
from pipeline.interfaces.cli.times import local, zone_of_here

if TYPE_CHECKING:
    from pipeline.engine.outbox import Event


def events(
    flow: Annotated[str, typer.Option(help="Only events of this flow.")] = "",
    types: Annotated[
        list[str] | None, typer.Option("--type", help="Only this type: document.completed, document.*. Repeatable.")
    ] = None,
    scope: Annotated[
        str, typer.Option(metavar="ID", callback=whole_scope, help="Only events about this document, run or batch.")
    ] = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new events as they come, until Ctrl-C.")
    ] = False,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List events, newest first: documents completed, runs stopped, items indexed. Or follow them.

    For example: [bold]penstock events --type 'document.*' --follow[/bold]
    """
    from pipeline.operations import events as record

    ready()
    if follow:
        for event in record.follow(flow=flow, types=types or (), scope_id=scope):
            if as_json:
                print_json(event)
            else:
                out.print(one_line("  ".join(_cells(event)), 500), soft_wrap=True)
        return
    newest = record.newest(record.Filter(flow, tuple(types or ()), scope), limit=limit)
    none = "No event matches." if flow or types or scope else "No events yet: `penstock convert FILE` makes the first."
    print_list(newest, ("SEQ>", "WHEN", "TYPE", "ABOUT", "NAME~?"), _cells, as_json=as_json, none=none)


def _cells(event: "Event") -> list[str]:
    name = event.data.get("filename") or event.data.get("name") or ""
    when = local(event.created_at, zone_of_here())
    return [str(event.seq), when, event.type, one_line(event.scope_id), one_line(str(name), 80)]
