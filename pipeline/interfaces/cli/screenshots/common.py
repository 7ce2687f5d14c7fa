"""What all commands of `penstock screenshots` share."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.interfaces.cli.screenshots.times import span

if TYPE_CHECKING:
    from pipeline.flows.screenshots.views import Retry
    from pipeline.settings import Settings

Json = Annotated[bool, typer.Option("--json", help="As JSON on standard output.")]
Limit = Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")]

MADE_BY = {
    "model": "the text model",
    "direct": "the vision model's segments as they stand: no text model, or its reply was no use",
    "rules": "window titles, recognised text and rules: no vision model looked",
    "": "",
}
"""Who made a node, in words."""


def ready() -> "Settings":
    """The settings, with the embedded database up to date."""
    from pipeline.settings import get_settings
    from pipeline.standalone.stack import migrate_embedded

    settings = get_settings()
    migrate_embedded(settings)
    return settings


def source_key(said: str, where: str = "--source") -> str:
    """A source's name as it was said. Raises `typer.BadParameter` if it is none."""
    from pipeline.flows.screenshots.rules.batches import MAX_SOURCE_KEY, is_source_key

    if not is_source_key(said):
        rule = f"an ID holds no colon, slash or blank, and the whole has at most {MAX_SOURCE_KEY} characters"
        raise typer.BadParameter(
            f"{said!r} is no source: screen:ID or window:ID, such as screen:0; {rule}", param_hint=where
        )
    return said


def tell_if_nothing_runs() -> None:
    """Where nothing runs that could go on with what was asked for, say how to start it."""
    from pipeline.interfaces.cli.output import err
    from pipeline.storage.context import get_context

    if not get_context().online:
        err.print("Nothing is running here: `penstock up` goes on with it.")


def said_of(retry: "Retry") -> str:
    """`2 batches wait for another try, the next in 53 s: the service cannot be reached`."""
    many = retry.count != 1
    plural = "es" if retry.kind == "batch" else "s"
    who = f"{retry.count:,} {retry.kind}{plural} wait" if many else f"1 {retry.kind} waits"
    left = f"in {span(retry.next_in_s)}" if retry.next_in_s >= 1 else "at once"
    return f"{who} for another try, {'the next ' if many else ''}{left}" + (f": {retry.reason}" if retry.reason else "")
