"""`penstock screenshots …`: ingest frames of screens and windows, and search them."""

from collections.abc import Callable

import typer

from pipeline.interfaces.cli.command import help_of
from pipeline.interfaces.cli.screenshots import capture, detail, exclusions, frames, intake, search, sources, status

app = typer.Typer(
    help="Ingest screenshots, let models (or rules) analyse them, and search what happened.\n\n"
    "Start with: [bold]penstock screenshots add desk.png[/bold], or [bold]penstock screenshots capture[/bold] while "
    '[bold]penstock up[/bold] runs; then [bold]penstock screenshots search "invoice"[/bold] and '
    "[bold]penstock screenshots timeline --since today[/bold].\n\n"
    "Without any provider, text recognition, window titles and rules do the work. "
    "PENSTOCK_SCREENSHOTS__VISION_PROVIDER, …__TEXT_PROVIDER and …__EMBEDDINGS_PROVIDER name providers for more; "
    "see docs/how-to/screenshots.md.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


_COMMANDS: dict[str, Callable[..., None]] = {
    "add": intake.add,
    "watch": capture.watch,
    "capture": capture.capture,
    "search": search.search,
    "timeline": search.timeline,
    "frames": frames.frames,
    "show": detail.show,
    "status": status.status,
    "batches": status.batches,
    "rejected": status.rejected,
    "dead-letters": status.dead_letters,
    "replay": status.replay,
    "delete": sources.delete,
}
for _name, _command in _COMMANDS.items():
    app.command(_name, help=help_of(_command))(_command)
app.add_typer(sources.sources, name="sources")
app.add_typer(exclusions.exclusions, name="exclusions")
