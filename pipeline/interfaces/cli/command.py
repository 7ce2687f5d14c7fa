"""What commands share: their options and help, the settings they begin with, and a hint for when nothing is running."""

import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pipeline.settings import Settings
    from pipeline.storage.context import Context

Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Limit = Annotated[int, typer.Option(min=1, max=100_000, help="List at most this many.")]


class Format(StrEnum):
    """What is written: Markdown, the blocks on each page with their boxes, or these as a DoclingDocument."""

    MD = "md"
    JSON = "json"
    DOCLING = "docling"

    @property
    def suffix(self) -> str:
        """What names of files in this format end with."""
        return ".docling.json" if self is Format.DOCLING else f".{self}"


def format_of(name: str) -> Format:
    """The format of this name. Raises `typer.BadParameter`."""
    try:
        return Format(name.lower())
    except ValueError:
        raise typer.BadParameter(
            f"Penstock does not write {name!r}: choose md (Markdown), json (blocks with "
            "their boxes) or docling (a DoclingDocument)."
        ) from None


AsFormat = Annotated[
    Format,
    typer.Option(
        "--format",
        parser=format_of,
        metavar="md|json|docling",
        help="md: Markdown; json: blocks with their boxes; docling: a DoclingDocument.",
    ),
]


def help_of(command: Callable[..., None]) -> str:
    """A command's docstring with each paragraph on one line, for the terminal to wrap; examples keep their lines."""
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    return "\n\n".join(part if part.startswith("[bold]") else part.replace("\n", " ") for part in paragraphs)


def all_settings() -> "Settings":
    """The settings, of which none is misspelt, also where they are read later. Raises `UnreadableSettingsError`."""
    from pipeline.settings import get_settings

    settings = get_settings()
    if settings.sections_set:
        from pipeline.flows import check_sections

        check_sections(settings)
    return settings


def ready() -> "Settings":
    """The settings, with the embedded database migrated. Raises `UserError` if another one is not."""
    from pipeline.standalone.stack import migrate_embedded

    settings = all_settings()
    migrate_embedded(settings)
    return settings


def ready_context() -> "Context":
    """The context of these settings, with the embedded database migrated."""
    from pipeline.process import get_context

    ready()
    return get_context()


def tell_if_nothing_runs() -> None:
    """If nothing is running that would carry on with the work just asked for, say how to start it."""
    from pipeline.interfaces.cli.output import err
    from pipeline.process import get_context

    if not get_context().online:
        err.print("Nothing is running here: `penstock up` continues it.")
