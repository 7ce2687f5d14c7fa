"""`penstock music runs`: runs, their progress, and their cost."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.engine.views import money, plain
from pipeline.interfaces.cli.command import Json, Limit, ready
from pipeline.interfaces.cli.ids import whole
from pipeline.interfaces.cli.output import one_line, print_json, print_list, print_pairs, state
from pipeline.interfaces.cli.times import ago

if TYPE_CHECKING:
    from pipeline.flows.music.views import RunView


def runs(
    run: Annotated[
        str, typer.Argument(metavar="[RUN]", callback=whole("music", "runs"), help="A run's id. Default: list runs.")
    ] = "",
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List runs, newest first, or show one: its songs and batches by state, and the cost of its calls."""
    from pipeline.operations import music

    ready()
    if run:
        _show(run, as_json=as_json)
        return

    def row(view: "RunView") -> list[str]:
        return [
            view.id,
            view.mode.value,
            state(view.outcome or view.status.value),
            f"{view.enqueued:,}",
            ago(view.created_at),
            one_line(view.error, 100),
        ]

    columns = ("ID", "MODE", "STATE", "SONGS>", "STARTED", "ERROR?")
    print_list(
        music.runs(limit=limit), columns, row, as_json=as_json, none="No runs. `penstock music start` starts one."
    )


def _show(run_id: str, *, as_json: bool) -> None:
    from pipeline.operations import music

    view, figures = music.run(run_id), music.figures(run_id)
    if as_json:
        print_json({**plain(view), "figures": plain(figures)})
        return
    failed = f", {figures.failed_calls:,} of them failed" if figures.failed_calls else ""
    later = f", {figures.delayed:,} of them tried again later" if figures.delayed else ""
    rows = [
        ("run", view.id),
        ("state", state(view.outcome or view.status.value)),
        ("error", one_line(view.error)),
        ("mode", view.mode.value),
        ("songs", _counted(figures.songs) or f"{view.enqueued:,}"),
        ("batches", _counted(figures.batches) + later),
        ("calls", f"{figures.calls:,}{failed}, {figures.input_tokens:,} tokens in, {figures.output_tokens:,} out"),
        ("cost", money(figures.cost)),
        ("started", ago(view.created_at)),
        ("ended", ago(view.finished_at) if view.finished_at else ""),
    ]
    print_pairs([(name, value) for name, value in rows if value])


def _counted(counts: dict[str, int]) -> str:
    return "  ".join(f"{name} {count:,}" for name, count in counts.items())
