"""`penstock screenshots sources` and `delete`."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.interfaces.cli.screenshots.common import Json, ready, source_key, tell_if_nothing_runs
from pipeline.interfaces.cli.screenshots.times import moment, told

if TYPE_CHECKING:
    from tasks.screenshots import Extent

sources = typer.Typer(
    help="List screens and windows that frames came from; switch them on and off.",
    invoke_without_command=True,
    rich_markup_mode="rich",
)
Key = Annotated[str, typer.Argument(metavar="SOURCE", help="screen:ID or window:ID.")]


@sources.callback()
def list_sources(context: typer.Context, as_json: Json = False) -> None:
    """List screens and windows that frames came from; switch them on and off.

    Frames of a source that is switched off are refused, with a line in `rejected`.
    """
    from pipeline.flows.screenshots.views import as_json as plain
    from pipeline.interfaces.cli.output import Table, ago, err, one_line, print_json
    from tasks import screenshots

    if context.invoked_subcommand is not None:
        return
    ready()
    found = screenshots.sources()
    if as_json:
        print_json(plain(found))
        return
    if not found:
        err.print("No frames yet. `penstock screenshots add FILE` takes one in.")
        return
    rows = Table("SOURCE", "ACTIVE", "FRAMES>", "REJECTED>", "BEHIND>?", "LAST FRAME")
    for one in found:
        active = "yes" if one.active else "[yellow]no[/yellow]"
        rows.add(one_line(one.key), active, f"{one.frames:,}", f"{one.rejected:,}", str(one.pressure), ago(one.seen_at))
    rows.print()


@sources.command()
def activate(key: Key) -> None:
    """Take frames of this source, from now on."""
    _switch(key, active=True)


@sources.command()
def deactivate(key: Key) -> None:
    """Refuse frames of this source, from now on. What it has in the buffer is still analysed."""
    _switch(key, active=False)


def _switch(key: str, *, active: bool) -> None:
    from pipeline.interfaces.cli.output import err, one_line
    from tasks import screenshots

    source_key(key, "SOURCE")
    ready()
    seen = any(one.key == key and one.frames + one.rejected for one in screenshots.sources())
    screenshots.set_active(key, active)
    never = "" if seen else " No frame ever came from it; `penstock screenshots sources` lists those that are known."
    err.print(f"{one_line(key)}: its frames are {'taken' if active else 'refused'} from now on.{never}", soft_wrap=True)


def delete(
    since: Annotated[str, typer.Option(metavar="WHEN", help="From then on: 2d, 3h (ago), 2026-03-01T14:30, today.")],
    until: Annotated[str, typer.Option(metavar="WHEN", help="Before then; said like --since.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete what was captured in a range of time, with everything that was derived from it.

    Frames with their files, texts, nodes, vectors, and previews of calls go for good; originals that you added stay
    where they are. Nodes that took in one that goes say again what they said before, and are merged anew.

    [bold]penstock screenshots delete --since 2026-03-01T14:00 --until 2026-03-01T15:00[/bold]
    """
    from pipeline.engine.errors import UserError
    from pipeline.flows.screenshots.views import as_json as plain
    from pipeline.interfaces.cli.output import count, err, print_json
    from tasks import screenshots

    ready()
    zone = screenshots.time_zone()
    begin, end = moment(since, zone), moment(until, zone, "--until")
    if begin is None or end is None:
        raise typer.BadParameter("say from when until when", param_hint="--since, --until")
    if begin >= end:
        raise UserError("the range ends before it begins", code="usage")
    goes = screenshots.extent(begin, end)
    if not yes:
        if not goes.screenshots and not goes.rejections:
            err.print("Nothing was captured in that time.")
            return
        err.print(_what_goes(goes, f"{told(begin, zone)} to {told(end, zone)}"), soft_wrap=True)
        typer.confirm("Delete it?", abort=True, err=True)
    done = screenshots.forget(begin, end)
    if as_json:
        print_json(plain(done))
        return
    restored = f"; {count(done.restored, 'node')} will be merged anew" if done.restored else ""
    gone = f"{count(done.screenshots, 'screenshot')}, {count(done.nodes, 'node')}"
    err.print(f"Deleted: {gone}{restored}.", soft_wrap=True)
    if done.restored:
        tell_if_nothing_runs()


def _what_goes(goes: "Extent", span: str) -> str:
    from pipeline.interfaces.cli.output import count

    parts = [f"{count(goes.screenshots, 'screenshot')} with their files and texts"]
    parts += [f"{count(goes.nodes, 'node')} that rest on them, with their vectors"] if goes.nodes else []
    parts += [f"{count(goes.rejections, 'line')} of the ledger of rejected frames"] if goes.rejections else []
    return f"{span}: " + ", ".join(parts) + " go for good."
