"""`penstock prune`: deletes rows and files past their retention."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.interfaces.cli.command import Json, ready_context
from pipeline.interfaces.cli.output import err, one_line, print_list

if TYPE_CHECKING:
    from pipeline.operations.retention import Pruned


def prune(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what the command would delete, and delete nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Delete attempts, calls, runs, events, documents and frames past their retention, and list them.

    The settings PENSTOCK_RETENTION__… limit each kind by age and by number. By default, ledgers (attempts, calls,
    runs, events) stay for 90 days, and finished documents for ever. Workers do the same
    every hour.

    [bold]penstock prune --dry-run[/bold]
    """
    from pipeline.operations import retention

    parts = retention.prune(ready_context(), dry_run=dry_run)

    def row(part: "Pruned") -> list[str]:
        went = f"[red]{one_line(part.error, 200)}[/red]" if part.error else f"{part.removed:,}"
        return [part.name, part.flow or "all", part.kept, went]

    columns = ("WHAT", "FLOW", "KEPT", "WOULD GO" if dry_run else "WENT")
    print_list(parts, columns, row, as_json=as_json, none="Nothing to list.")
    if not as_json and dry_run:
        err.print("This removed nothing. `penstock prune` removes these; docs/reference/settings.md has the settings.")
    if any(part.error for part in parts):
        raise typer.Exit(1)
