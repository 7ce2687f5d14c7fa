"""`penstock screenshots …`: frames of screens and windows, understood and made findable."""

import typer

from pipeline.cli.screenshots import adding, finding, running, showing, taking, upkeep

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
app.command("add")(adding.add)
app.command("watch")(taking.watch)
app.command("capture")(taking.capture)
app.command("search")(finding.search)
app.command("timeline")(finding.timeline)
app.command("show")(showing.show)
app.command("status")(running.status)
app.command("batches")(running.batches)
app.command("rejected")(running.rejected)
app.command("dead-letters")(running.dead_letters)
app.command("replay")(running.replay)
app.add_typer(upkeep.sources, name="sources")
app.command("delete")(upkeep.delete)
