"""`penstock prune`: let go of what is beyond its time."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.interfaces.cli.command import Json, ready_context
from pipeline.interfaces.cli.output import err, one_line, print_list

if TYPE_CHECKING:
    from pipeline.operations.retention import Pruned


def prune(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False, as_json: Json = False
) -> None:
    """Let go of what is beyond its time, and say what went: attempts, calls, runs, events, documents, frames.

    The settings PENSTOCK_RETENTION__… say how long each kind is kept, by age and by number. Ledgers (attempts, calls,
    runs, events) are kept for 90 days and finished documents for ever unless you say otherwise. Workers do the same
    every hour.

    [bold]penstock prune --dry-run[/bold]
    """
    from pipeline.operations import retention

    found = retention.prune(ready_context(), dry_run=dry_run)

    def row(one: "Pruned") -> list[str]:
        went = f"[red]{one_line(one.error, 200)}[/red]" if one.error else f"{one.removed:,}"
        return [one.name, one.flow or "all", one.kept, went]

    columns = ("WHAT", "FLOW", "KEPT", "WOULD GO" if dry_run else "WENT")
    print_list(found, columns, row, as_json=as_json, none="Nothing is kept.")
    if not as_json and dry_run:
        err.print("Nothing was removed. `penstock prune` removes it; docs/reference/settings.md says what decides.")
    if any(one.error for one in found):
        raise typer.Exit(1)
