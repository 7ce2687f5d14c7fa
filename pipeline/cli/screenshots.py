"""`penstock screenshots …`: frames of screens and windows, understood and made findable."""

import typer

from pipeline.cli import (
    screenshots_adding,
    screenshots_finding,
    screenshots_running,
    screenshots_showing,
    screenshots_taking,
    screenshots_upkeep,
)

app = typer.Typer(
    help="Take screenshots in, let models (or rules) understand them, and search what happened.\n\n"
    "Start with: [bold]penstock screenshots add desk.png[/bold], or [bold]penstock screenshots capture[/bold] while "
    '[bold]penstock up[/bold] runs; then [bold]penstock screenshots search "invoice"[/bold] and '
    "[bold]penstock screenshots timeline --since today[/bold].\n\n"
    "Without any provider, text recognition, window titles and rules do the work. "
    "PENSTOCK_SCREENSHOTS__VISION_PROVIDER, …__TEXT_PROVIDER and …__EMBEDDINGS_PROVIDER name providers for more; "
    "docs/screenshots.md has all.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.command("add")(screenshots_adding.add)
app.command("watch")(screenshots_taking.watch)
app.command("capture")(screenshots_taking.capture)
app.command("search")(screenshots_finding.search)
app.command("timeline")(screenshots_finding.timeline)
app.command("show")(screenshots_showing.show)
app.command("status")(screenshots_running.status)
app.command("batches")(screenshots_running.batches)
app.command("rejected")(screenshots_running.rejected)
app.command("dead-letters")(screenshots_running.dead_letters)
app.command("replay")(screenshots_running.replay)
app.add_typer(screenshots_upkeep.sources, name="sources")
app.command("delete")(screenshots_upkeep.delete)
