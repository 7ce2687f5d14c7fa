"""`penstock screenshots exclusions`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.interfaces.cli.command import Json, ready
from pipeline.interfaces.cli.output import err, one_line, print_json, print_list

if TYPE_CHECKING:
    from pipeline.flows.screenshots.views import Exclusions

exclusions = typer.Typer(
    help="List the programs and window titles whose frames Penstock never stores; add or remove some.",
    invoke_without_command=True,
    rich_markup_mode="rich",
)
Apps = Annotated[
    list[str] | None, typer.Option("--app", metavar="PATTERN", help="A program, such as '*KeePass*'. Repeatable.")
]
Titles = Annotated[list[str] | None, typer.Option("--title", metavar="PATTERN", help="A window's title. Repeatable.")]


@exclusions.callback()
def list_exclusions(context: typer.Context, as_json: Json = False) -> None:
    """List the programs and window titles whose frames Penstock never stores; add or remove some.

    PENSTOCK_SCREENSHOTS__EXCLUDED_APPS and …__EXCLUDED_TITLES always apply as well.
    """
    from pipeline.operations import screenshots

    if context.invoked_subcommand is not None:
        return
    ready()
    listed = screenshots.exclusions()
    if as_json:
        print_json(listed)
    else:
        _show(listed)


@exclusions.command()
def add(app: Apps = None, title: Titles = None) -> None:
    """Exclude programs and window titles from now on. Stored frames stay.

    [bold]penstock screenshots exclusions add --app Signal --title "*private browsing*"[/bold]
    """
    from pipeline.operations import screenshots

    _named(app, title)
    ready()
    screenshots.exclude_also(app or (), title or ())
    err.print("Penstock stores no more frames of these. `penstock screenshots delete` removes earlier ones.")


@exclusions.command()
def remove(app: Apps = None, title: Titles = None) -> None:
    """Remove exclusions that you added."""
    from pipeline.operations import screenshots

    _named(app, title)
    ready()
    screenshots.include_again(app or (), title or ())
    err.print("Penstock stores frames of these again.")


def _named(app: Sequence[str] | None, title: Sequence[str] | None) -> None:
    if not app and not title:
        raise typer.BadParameter("name a program or a window's title", param_hint="--app, --title")


def _show(exclusions: "Exclusions") -> None:
    rows = [
        *(("program", entry, "settings") for entry in exclusions.fixed_apps),
        *(("program", entry, "") for entry in exclusions.apps),
        *(("title", entry, "settings") for entry in exclusions.fixed_titles),
        *(("title", entry, "") for entry in exclusions.titles),
    ]
    print_list(
        rows,
        ("WHAT", "PATTERN", "FIXED BY?"),
        lambda row: [row[0], one_line(row[1], 200), row[2]],
        as_json=False,
        none="No exclusions. `penstock screenshots exclusions add --app Signal` excludes a program.",
    )
