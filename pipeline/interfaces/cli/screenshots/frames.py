"""`penstock screenshots frames`."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.interfaces.cli.command import Json, Limit, ready
from pipeline.interfaces.cli.output import one_line, print_list, state
from pipeline.interfaces.cli.screenshots import ids
from pipeline.interfaces.cli.screenshots.search import App
from pipeline.interfaces.cli.screenshots.sources import source_key
from pipeline.interfaces.cli.times import Since, Until, local, moment

if TYPE_CHECKING:
    from pipeline.flows.screenshots.views import ScreenshotView


def frames(
    since: Since = "",
    until: Until = "",
    source: Annotated[str, typer.Option(help="Only frames of this source, such as screen:0.")] = "",
    app: App = "",
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List frames, the latest first, also those that wait for analysis.

    [bold]penstock screenshots frames --since 2h --app Firefox[/bold]
    """
    from pipeline.operations import screenshots

    if source:
        source_key(source)
    ready()
    zone = screenshots.time_zone()

    def row(shot: "ScreenshotView") -> list[str]:
        return [
            ids.frame(shot.id),
            local(shot.ts, zone),
            one_line(shot.source_key, 30),
            state(shot.status.value),
            ids.batch(shot.batch_id),
            one_line(shot.app or shot.app_guess, 30),
            one_line(shot.window_title or " ".join((shot.ocr_text or "").split()), 120),
        ]

    views = screenshots.screenshots(
        since=moment(since, zone), until=moment(until, zone, "--until"), source=source, app=app, limit=limit
    )
    print_list(
        views,
        ("ID", "CAPTURED", "SOURCE?", "STATE", "BATCH?", "APP~?", "WINDOW~?"),
        row,
        as_json=as_json,
        none="No frames. `penstock screenshots add FILE` ingests one.",
    )
