"""`penstock kb status`, `queue`, `recover`, `dismiss` and `check`: waiting items, orphans, leftovers."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.engine.nouns import count
from pipeline.engine.views import plain
from pipeline.interfaces.cli.command import Json, ready, warn_if_no_stack
from pipeline.interfaces.cli.knowledge.bases import Base
from pipeline.interfaces.cli.knowledge.items import WHOLE_ITEM, activity
from pipeline.interfaces.cli.output import err, one_line, print_json, print_list, print_pairs

if TYPE_CHECKING:
    from pipeline.flows.knowledge.views import BaseView

_UNSOUND = 1


def status(as_json: Json = False) -> None:
    """Show the queues of all bases: their waiting items, and their items under way."""
    from pipeline.operations import knowledge

    ready()
    totals = knowledge.get_status()
    if as_json:
        print_json(totals)
        return
    print_pairs([("in line", f"{totals.queue_size:,}"), ("under way", f"{totals.processing_count:,}")])
    waiting = [base for base in knowledge.bases() if totals.per_base_queue.get(base.id)]

    def row(base: "BaseView") -> list[str]:
        return [base.id, one_line(base.name), f"{totals.per_base_queue[base.id]:,}"]

    if waiting:
        print_list(waiting, ("BASE", "NAME~", "IN LINE>"), row, as_json=False, none="")
    if totals.queue_size or totals.processing_count:
        warn_if_no_stack()


def queue(base: Base, as_json: Json = False) -> None:
    """Show a base's queue: items under way with their steps, waiting items, and orphans.

    Orphans are items that lost their worker, or that wait where no stack runs. `penstock up` continues them within
    seconds.
    """
    from pipeline.operations import knowledge

    ready()
    view = knowledge.queue(base)
    busy = knowledge.standings([*view.active_item_ids, *view.orphan_item_ids])
    if as_json:
        print_json({**vars(view), "standings": plain(busy)})
        return
    print_pairs(
        [
            ("in line", f"{view.queue_size:,}"),
            ("under way", f"{view.processing_count:,}"),
            ("orphans", f"{len(view.orphan_item_ids):,}"),
        ]
    )
    if busy:
        rows = list(busy.values())
        print_list(
            rows, ("ITEM", "NOW"), lambda standing: [standing.item_id, activity(standing)], as_json=False, none=""
        )
    if view.orphan_item_ids:
        err.print(
            "`penstock kb recover BASE` continues orphans, `penstock kb dismiss BASE` fails them.",
            soft_wrap=True,
        )
        warn_if_no_stack()


def recover(base: Base, as_json: Json = False) -> None:
    """Queue a base's orphans again. `penstock up` does so within seconds."""
    from pipeline.operations import knowledge

    ready()
    recovered = knowledge.recover(base)
    if as_json:
        print_json(recovered)
    else:
        err.print(f"{count(len(recovered), 'item')} recovered." if recovered else "No orphans.")
    if recovered:
        warn_if_no_stack()


def dismiss(
    base: Base,
    item_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ITEM]…", callback=WHOLE_ITEM, help="Default: all orphans.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Give up a base's orphans: they fail with the error `Interrupted`. You can reprocess them later."""
    from pipeline.operations import knowledge

    ready()
    done = knowledge.dismiss(base, item_ids or None)
    if as_json:
        print_json(done)
    else:
        err.print(f"{count(len(done), 'orphan')} given up." if done else "No orphans.")


def check(as_json: Json = False) -> None:
    """Check that no chunk, vector or text is left of deleted items, and none is missing of searchable ones.

    Exit code 1 for any fault. The check reads whole tables, and counts items whose deletion is under way as faults.
    """
    from pipeline.operations import knowledge

    ready()
    report = knowledge.check()
    if as_json:
        print_json(report)
    else:
        print_pairs([(name.replace("_", " "), f"{number:,}") for name, number in vars(report).items()])
        err.print(
            "Complete: nothing is left over or missing."
            if report.sound
            else "[red]Something is left over or missing.[/red]"
        )
    if not report.sound:
        raise typer.Exit(_UNSOUND)
