"""`penstock connect …`: takes documents from another system, and writes the results back to it."""

import typer

from pipeline.interfaces.cli.command import help_of
from pipeline.interfaces.cli.connect.command import paperless

app = typer.Typer(
    help="Convert the documents of another system, and write the results back to it.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.callback()(lambda: None)  # else the only command would take the group's place
app.command(help=help_of(paperless))(paperless)
