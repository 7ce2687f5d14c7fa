"""`penstock screenshots status`, `batches`, `rejected`, `dead-letters` and `replay`."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.interfaces.cli.screenshots.common import (
    MADE_BY,
    Json,
    Limit,
    ready,
    said_of,
    source_key,
    tell_if_nothing_runs,
)
from pipeline.interfaces.cli.screenshots.times import span, told

if TYPE_CHECKING:
    from tasks.screenshots import Status

KINDS = ("batch", "merge", "vector")


def status(as_json: Json = False) -> None:
    """Show how it stands: what is done, waits and failed, what keeps it, and what was done without a model."""
    from pipeline.flows.screenshots.views import as_json as plain
    from pipeline.interfaces.cli.output import print_json
    from tasks import screenshots

    ready()
    found = screenshots.status()
    if as_json:
        print_json(plain(found))
    else:
        _show_status(found)


def _show_status(found: "Status") -> None:
    from pipeline.interfaces.cli.output import one_line, print_pairs

    dead = ", ".join(f"{count:,} {kind}" for kind, count in found.dead_letters.items())
    rows = [
        ("screenshots", _counts(found.screenshots) or "none: `penstock screenshots add FILE` takes one in"),
        ("buffer", _buffer(found)),
        ("batches", _counts(found.batches) + _waiting(found)),
        ("nodes", ", ".join(f"{n:,} by {MADE_BY[by].partition(':')[0]}" for by, n in found.made_by.items())),
        ("merges", _counts(found.merges)),
        ("vectors", "  ".join(f"{name} {count:,}" for name, count in sorted(found.vectors.items()))),
        ("rejected", "  ".join(f"{name} {count:,}" for name, count in sorted(found.rejected.items()))),
        ("pressure", _pressure(found.pressure)),
        *(("again", one_line(said_of(retry))) for retry in found.retries),
        ("dead letters", f"{dead}: `penstock screenshots dead-letters` says why" if dead else ""),
        *(("closed", one_line(reason)) for reason in found.closed),
        ("workers", "running" if found.is_worker_running else "none: `penstock up` starts them"),
        *(("note", one_line(note)) for note in found.notes),
    ]
    print_pairs([(name, value) for name, value in rows if value])


def _counts(by_state: dict[str, int]) -> str:
    from pipeline.interfaces.cli.output import state

    # By itself, `failed` reads as if it were the end.
    named = {name: state(name).replace("]failed[", "]will be tried again[") for name in by_state}
    return "  ".join(f"{named[name]} {count:,}" for name, count in by_state.items())


def _buffer(found: "Status") -> str:
    if not found.buffered:
        return ""
    left = f", the next batch in {span(found.next_batch_in_s)}" if found.next_batch_in_s is not None else ""
    return f"{found.buffered:,} waiting for a batch{left}"


def _waiting(found: "Status") -> str:
    return f"  (the oldest waits for {span(found.oldest_waiting_s)})" if found.oldest_waiting_s is not None else ""


def _pressure(level: int) -> str:
    if not level:
        return ""
    more = ", and batches are longer" if level > 1 else ""
    return f"analysis is behind: frames count as duplicates by a wider threshold{more}"


def batches(
    failed: Annotated[bool, typer.Option("--failed", help="Only those that failed, or wait for another try.")] = False,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List batches, the newest first: state, attempts, who made the nodes, how long calls took, what was put right.

    NOTES are cut to fit the terminal; --json has all of them.
    """
    from pipeline.flows.screenshots.views import as_json as plain
    from pipeline.interfaces.cli.output import Table, err, one_line, print_json, state
    from tasks import screenshots
    from tasks.screenshots import WorkStatus

    ready()
    wanted = (WorkStatus.FAILED, WorkStatus.FAILED_PERMANENT) if failed else (None,)
    found = [batch for status in wanted for batch in screenshots.batches(status=status, limit=limit)]
    found = sorted(found, key=lambda batch: -batch.id)[:limit]
    if as_json:
        print_json(plain(found))
        return
    if not found:
        err.print("No batch failed." if failed else "No batches. `penstock screenshots status` says what waits.")
        return
    zone = screenshots.time_zone()
    rows = Table(
        "ID>", "SOURCE", "FRAMES>?", "FROM?", "STATE", "TRIES>?", "NODES BY?", "VLM MS>?", "TEXT MS>?", "NOTES~"
    )
    for batch in found:
        rows.add(
            str(batch.id), one_line(batch.source_key, 30), str(len(batch.shot_ids)), told(batch.ts_start, zone),
            state(batch.status.value), str(batch.attempts), batch.made_by, str(batch.vlm_ms), str(batch.text_ms),
            one_line("; ".join(filter(None, [batch.error, *batch.notes]))),
        )  # fmt: skip
    rows.print()


def rejected(
    source: Annotated[str, typer.Option(help="Only of this source, such as screen:0.")] = "",
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List frames that were not accepted, and why: the ledger to judge duplicates by.

    DIFFERS: in how many bits of 256 the frame differs from the nearest one; of at most how many, it is a duplicate.
    """
    from pipeline.flows.screenshots.views import as_json as plain
    from pipeline.interfaces.cli.output import Table, err, one_line, print_json
    from tasks import screenshots

    if source:
        source_key(source)
    ready()
    found = screenshots.rejections(source=source, limit=limit)
    if as_json:
        print_json(plain(found))
        return
    if not found:
        err.print("No frame was rejected.")
        return
    zone = screenshots.time_zone()
    rows = Table("ID>", "SOURCE", "CAPTURED", "WHY", "DIFFERS", "NEAREST", "DETAIL")
    for one in found:
        differs = "" if one.distance is None else str(one.distance)
        differs += f" of {one.threshold}" if differs and one.threshold is not None else ""
        rows.add(
            str(one.id), one_line(one.source_key, 30), told(one.ts, zone), one.reason,
            differs, f"shot:{one.nearest_id}" if one.nearest_id else "",
            one_line(one.detail, 160),
        )  # fmt: skip
    rows.print()


def dead_letters(limit: Limit = 100, as_json: Json = False) -> None:
    """List work that was given up, with the reasons. `replay` tries it again."""
    from pipeline.flows.screenshots.views import as_json as plain
    from pipeline.interfaces.cli.output import Table, ago, err, one_line, print_json
    from tasks import screenshots

    ready()
    found = screenshots.dead_letters(limit)
    if as_json:
        print_json(plain(found))
        return
    if not found:
        err.print("No dead letters.")
        return
    rows = Table("ID", "ATTEMPTS>", "GIVEN UP", "WHY")
    for letter in found:
        rows.add(f"{letter.kind}:{letter.id}", str(letter.attempts), ago(letter.at), one_line(letter.reason, 300))
    rows.print()


def replay(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID…]", help="As `dead-letters` lists them: batch:4, or 4 --kind batch."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    kind: Annotated[str, typer.Option(help="batch, merge or vector. Default: as the ids say.")] = "",
) -> None:
    """Try dead letters again. What was paid for stays: only what failed is asked for again.

    [bold]penstock screenshots replay batch:4 merge:17[/bold], [bold]penstock screenshots replay --all[/bold]
    """
    from pipeline.interfaces.cli.output import count, err
    from tasks import screenshots

    if bool(ids) == everything:
        raise typer.BadParameter("name dead letters, or --all", param_hint="ID")
    if kind and kind not in KINDS:
        raise typer.BadParameter(f"choose from {', '.join(KINDS)}", param_hint="--kind")
    wanted = _by_kind(ids or [], kind)
    ready()
    done = 0
    for one in (kind,) if everything and kind else KINDS if everything else wanted:
        done += len(screenshots.replay(one, None if everything else wanted[one]))
    err.print(f"{count(done, 'dead letter')} will be tried again." if done else "No dead letters.")
    if done:
        tell_if_nothing_runs()


def _by_kind(ids: list[str], kind: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for given in ids:
        said, _, number = given.rpartition(":")
        named = said or kind or KINDS[0]
        if named not in KINDS or (kind and named != kind) or not (number.isascii() and number.isdigit()):
            raise typer.BadParameter(f"{given!r} is no dead letter: batch:4, merge:17", param_hint="ID")
        found.setdefault(named, []).append(int(number))
    return found
