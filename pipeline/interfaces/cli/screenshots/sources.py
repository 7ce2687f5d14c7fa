"""`penstock screenshots sources` and `delete`."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.engine.errors import UserError
from pipeline.engine.nouns import count
from pipeline.interfaces.cli.command import Json, ready, warn_if_no_stack
from pipeline.interfaces.cli.output import confirm, err, one_line, print_json, print_list
from pipeline.interfaces.cli.times import ago, local, moment

if TYPE_CHECKING:
    from pipeline.flows.screenshots.views import SourceView

sources = typer.Typer(
    help="List the screens and windows of frames; switch them on and off.",
    invoke_without_command=True,
    rich_markup_mode="rich",
)
Key = Annotated[str, typer.Argument(metavar="SOURCE", help="screen:ID or window:ID.")]


def source_key(key: str, where: str = "--source") -> str:
    """The key itself. Raises `typer.BadParameter` if it does not name a source. `where`: the option that the message
    names."""
    from pipeline.flows.screenshots.rules.batches import MAX_SOURCE_KEY, is_source_key

    if not is_source_key(key):
        rule = f"an ID holds no colon, slash or blank, and the whole has at most {MAX_SOURCE_KEY} characters"
        raise typer.BadParameter(
            f"{key!r} is not a source: screen:ID or window:ID, such as screen:0; {rule}", param_hint=where
        )
    return key


@sources.callback()
def list_sources(context: typer.Context, as_json: Json = False) -> None:
    """List the screens and windows of frames; switch them on and off.

    Penstock refuses frames of a source that is off; `rejected` lists them.
    """
    from pipeline.operations import screenshots

    if context.invoked_subcommand is not None:
        return
    ready()

    def row(source: "SourceView") -> list[str]:
        active = "yes" if source.active else "[yellow]no[/yellow]"
        return [
            one_line(source.key),
            active,
            f"{source.frames:,}",
            f"{source.rejected:,}",
            str(source.pressure),
            ago(source.seen_at),
        ]

    print_list(
        screenshots.sources(),
        ("SOURCE", "ACTIVE", "FRAMES>", "REJECTED>", "BEHIND>?", "LAST FRAME"),
        row,
        as_json=as_json,
        none="No frames yet. `penstock screenshots add FILE` ingests one.",
    )


@sources.command()
def activate(key: Key) -> None:
    """Accept frames of this source from now on."""
    _switch(key, active=True)


@sources.command()
def deactivate(key: Key) -> None:
    """Refuse frames of this source from now on. Frames in its buffer are still analysed."""
    _switch(key, active=False)


def _switch(key: str, *, active: bool) -> None:
    from pipeline.operations import screenshots

    source_key(key, "SOURCE")
    ready()
    seen = any(source.key == key and source.frames + source.rejected for source in screenshots.sources())
    screenshots.set_active(key, active)
    never = "" if seen else " No frame ever came from it; `penstock screenshots sources` lists the known ones."
    err.print(f"{one_line(key)}: its frames are {'taken' if active else 'refused'} from now on.{never}", soft_wrap=True)


def delete(
    since: Annotated[
        str, typer.Option(metavar="WHEN", help="From this time on: 2d, 3h (ago), 2026-03-01T14:30, today.")
    ],
    until: Annotated[str, typer.Option(metavar="WHEN", help="Before this time; written like --since.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: Json = False,
) -> None:
    """Delete the frames of a range of time, with everything derived from them.

    This deletes the frames with their files, texts, nodes, vectors and previews of calls, beyond recovery; originals
    that you added stay. A node that had absorbed a deleted one regains its earlier text, and is merged again.

    [bold]penstock screenshots delete --since 2026-03-01T14:00 --until 2026-03-01T15:00[/bold]
    """
    from pipeline.operations import screenshots

    ready()
    zone = screenshots.time_zone()
    begin, end = moment(since, zone), moment(until, zone, "--until")
    if begin is None or end is None:
        raise typer.BadParameter("give both ends of the range", param_hint="--since, --until")
    if begin >= end:
        raise UserError("the range ends before it begins", code="usage")
    goes = screenshots.extent(begin, end)
    if not yes:
        if not goes.screenshots and not goes.rejections:
            err.print("No frames in that time.")
            return
        parts = [f"{count(goes.screenshots, 'screenshot')} with their files and texts"]
        parts += [f"{count(goes.nodes, 'node')} that rest on them, with their vectors"] if goes.nodes else []
        parts += [f"{count(goes.rejections, 'record')} of rejected frames"] if goes.rejections else []
        err.print(
            f"{local(begin, zone)} to {local(end, zone)}: {', '.join(parts)}. You cannot undo this.", soft_wrap=True
        )
        confirm("Delete it?")
    done = screenshots.forget(begin, end)
    if as_json:
        print_json(done)
        return
    restored = f"; {count(done.restored, 'node')} will be merged again" if done.restored else ""
    deleted = f"{count(done.screenshots, 'screenshot')}, {count(done.nodes, 'node')}"
    err.print(f"Deleted: {deleted}{restored}.", soft_wrap=True)
    if done.restored:
        warn_if_no_stack()
