"""`penstock kb …`: knowledge bases and what is found in them."""

import typer

from pipeline.interfaces.cli.knowledge import search

app = typer.Typer(help="Search knowledge bases by words and by meaning.", no_args_is_help=True, rich_markup_mode="rich")
app.command("search")(search.search)
