"""Shared by commands: options and help, the settings that they load, and a hint for when no stack runs."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.reading.export.formats import Format

if TYPE_CHECKING:
    from pipeline.settings import Settings
    from pipeline.storage.context import Context

Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Limit = Annotated[int, typer.Option(min=1, max=100_000, help="List at most this many.")]


def formats_of(names: str) -> tuple[Format, ...]:
    """The formats of these names, separated by commas. Raises `typer.BadParameter`."""
    found = [name.strip().lower() for name in names.split(",")]
    if unknown := [name for name in found if name not in list(Format)]:
        raise typer.BadParameter(f"Penstock does not write {unknown[0]!r}: choose {_NAMES.replace('|', ', ')}.")
    return tuple(map(Format, found))


def format_of(name: str) -> Format:
    """The format of this name. Raises `typer.BadParameter`."""
    found = formats_of(name)
    if len(found) > 1:
        raise typer.BadParameter("name one format")
    return found[0]


_NAMES = "|".join(Format)
_ABOUT = (
    "md: Markdown; json: blocks with their boxes; html; docling: a DoclingDocument; txt: plain text; pdf: the file "
    "itself, searchable."
)
AsFormat = Annotated[Format, typer.Option("--format", parser=format_of, metavar=_NAMES, help=_ABOUT)]
AsFormats = Annotated[
    list[str] | None,
    typer.Option("--format", metavar=_NAMES, help=f"{_ABOUT} Several with commas. Default: md."),
]
NoMarkers = Annotated[
    bool, typer.Option("--no-page-markers", help="Markdown without the comments and rules between its pages.")
]


def help_of(command: Callable[..., None]) -> str:
    """A command's docstring with each paragraph on one line, for the terminal to wrap; examples keep their lines."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(part if part.startswith("[bold]") else part.replace("\n", " ") for part in paragraphs)


def all_settings() -> "Settings":
    """The settings, after checking all names and values. Raises `UnreadableSettingsError` or pydantic's
    `ValidationError`."""
    from pipeline.settings import get_settings

    settings = get_settings()
    if settings.sections_set:
        from pipeline.flows import check_sections

        check_sections(settings)
    return settings


def ready() -> "Settings":
    """The settings, after migrating the embedded database. Raises `UserError` if the user's own database needs
    `penstock migrate`, `ForeignFolder` if the data folder is another database's, and the errors of `all_settings`."""
    from pipeline.standalone.stack import migrate_embedded

    settings = all_settings()
    migrate_embedded(settings)
    return settings


def ready_context() -> "Context":
    """The context of these settings, after migrating the embedded database."""
    from pipeline.process import get_context

    ready()
    return get_context()


def warn_if_no_stack() -> None:
    """If the embedded Redis is down, print that no stack runs and how to start one. Prints nothing with the user's own
    Redis, even without workers."""
    from pipeline.interfaces.cli.output import err
    from pipeline.process import get_context

    if not get_context().online:
        err.print("No stack is running: `penstock up` starts one and continues the work.")
