"""`penstock screenshots status`, `batches`, `rejected`, `dead-letters` and `replay`."""

from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.engine.errors import UserError
from pipeline.engine.nouns import count
from pipeline.interfaces.cli.command import Json, Limit, ready, warn_if_no_stack
from pipeline.interfaces.cli.output import err, one_line, print_json, print_list, print_pairs, state
from pipeline.interfaces.cli.screenshots import ids
from pipeline.interfaces.cli.screenshots.sources import source_key
from pipeline.interfaces.cli.times import ago, local, span

if TYPE_CHECKING:
    from pipeline.flows.screenshots.views import BatchView, CaptureView, DeadLetter, RejectionView, Retry, Status

KINDS = ("batch", "merge", "vector")
REASONS = ("duplicate", "inactive", "excluded", "refused")
"""Why a frame is not accepted."""
CAPTURES_WITHIN_S = 10
"""How late a capture may be before capturing counts as stopped."""
MOST_LETTERS = 1_000_000
MADE_BY = {
    "model": "the text model",
    "direct": "the vision model's segments as they stand: no text model, or its reply was unusable",
    "rules": "window titles, recognised text and rules: no vision model looked",
    "": "",
}
"""The origin of a node, in words."""


def status(as_json: Json = False) -> None:
    """Show work that is done, waiting and failed, why it waits, and the share that no model made."""
    from pipeline.operations import screenshots

    ready()
    snapshot = screenshots.status()
    if as_json:
        print_json(snapshot)
    else:
        _show_status(snapshot)


def _show_status(snapshot: "Status") -> None:
    buffered = f"{snapshot.buffered:,} waiting for a batch" if snapshot.buffered else ""
    if snapshot.buffered and snapshot.next_batch_in_s is not None:
        buffered += f", the next batch in {span(snapshot.next_batch_in_s)}"
    oldest = snapshot.oldest_waiting_s
    waiting = f"  (the oldest has waited {span(oldest)})" if oldest is not None else ""
    longer = ", and batches are longer" if snapshot.pressure > 1 else ""
    behind = f"analysis is behind: a wider threshold for duplicates applies{longer}" if snapshot.pressure else ""
    dead = ", ".join(f"{count:,} {kind}" for kind, count in snapshot.dead_letters.items())
    rows = [
        ("screenshots", _counts(snapshot.screenshots) or "none: `penstock screenshots add FILE` ingests one"),
        ("buffer", buffered),
        ("batches", _counts(snapshot.batches) + waiting),
        ("nodes", ", ".join(f"{n:,} by {MADE_BY[by].partition(':')[0]}" for by, n in snapshot.made_by.items())),
        ("merges", _counts(snapshot.merges)),
        ("vectors", "  ".join(f"{name} {count:,}" for name, count in sorted(snapshot.vectors.items()))),
        ("rejected", "  ".join(f"{name} {count:,}" for name, count in sorted(snapshot.rejected.items()))),
        ("pressure", behind),
        *(("again", one_line(retry_line(retry))) for retry in snapshot.retries),
        ("dead letters", f"{dead}: `penstock screenshots dead-letters` says why" if dead else ""),
        *(("closed", one_line(reason)) for reason in snapshot.closed),
        ("capture", one_line(_capture(snapshot.capture)) if snapshot.capture else ""),
        ("workers", "running" if snapshot.is_worker_running else "none running: `penstock up` starts them"),
        *(("note", one_line(note)) for note in snapshot.notes),
    ]
    print_pairs([(name, value) for name, value in rows if value])


def _capture(capture: "CaptureView") -> str:
    """A line about capture: its sources and interval, then the age of the last frame, an error, or that no process
    captures. Such as `screen:1, window:Firefox every 5 s, last 3 s ago; not there: window:Firefox`."""
    schedule = f"{', '.join(capture.sources)} every {capture.every_s:g} s"
    if capture.last_s is None or capture.last_s > 3 * capture.every_s + CAPTURES_WITHIN_S:
        since = "" if capture.last_s is None else f" for {span(capture.last_s)}"
        starts = "`penstock up` or `penstock worker --role capture` in the desktop session does"
        return f"{schedule}: nobody captures{since}; {starts}"
    if capture.error:
        return f"{schedule}: {capture.error}"
    return f"{schedule}, last {span(capture.last_s)} ago" + (
        f"; not there: {', '.join(capture.missing)}" if capture.missing else ""
    )


def _counts(by_state: dict[str, int]) -> str:
    # `failed` alone would read as final.
    named = {name: state(name).replace("]failed[", "]will be tried again[") for name in by_state}
    return "  ".join(f"{named[name]} {count:,}" for name, count in by_state.items())


def retry_line(retry: "Retry") -> str:
    """`2 batches wait for another try, the next in 53 s: the service cannot be reached`."""
    several = retry.count != 1
    wait = f"in {span(retry.next_in_s)}" if retry.next_in_s >= 1 else "at once"
    return (
        f"{count(retry.count, retry.kind)} {'wait' if several else 'waits'} for another try, "
        f"{'the next ' if several else ''}{wait}" + (f": {retry.reason}" if retry.reason else "")
    )


def batches(
    failed: Annotated[bool, typer.Option("--failed", help="Only batches that failed or wait for a retry.")] = False,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List batches, newest first: state, attempts, the origin of nodes, durations of calls, repairs."""
    from pipeline.flows.screenshots.states import WorkStatus
    from pipeline.operations import screenshots

    ready()
    wanted = (WorkStatus.FAILED, WorkStatus.FAILED_PERMANENT) if failed else (None,)
    views = [batch for status in wanted for batch in screenshots.batches(status=status, limit=limit)]
    zone = screenshots.time_zone()

    def row(batch: "BatchView") -> list[str]:
        return [
            ids.batch(batch.id),
            one_line(batch.source_key, 30),
            str(len(batch.shot_ids)),
            local(batch.ts_start, zone),
            state(batch.status.value),
            str(batch.total_attempts),
            batch.made_by,
            str(batch.vlm_ms),
            str(batch.text_ms),
            one_line("; ".join(filter(None, [batch.error, *batch.notes]))),
        ]

    print_list(
        sorted(views, key=lambda batch: -batch.id)[:limit],
        ("ID", "SOURCE", "FRAMES>?", "FROM?", "STATE", "TRIES>?", "NODES BY?", "VLM MS>?", "TEXT MS>?", "NOTES~"),
        row,
        as_json=as_json,
        none="No batch failed." if failed else "No batches. `penstock screenshots status` shows waiting frames.",
    )


def rejected(
    source: Annotated[str, typer.Option(help="Only frames of this source, such as screen:0.")] = "",
    reason: Annotated[str, typer.Option(help=f"Only frames with this reason: {', '.join(REASONS)}.")] = "",
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List rejected frames with their reasons, for example to check the threshold of duplicates.

    DIFFERS: how many of 256 bits differ from the nearest frame; a frame is a duplicate up to the second number.
    """
    from pipeline.operations import screenshots

    if source:
        source_key(source)
    if reason and reason not in REASONS:
        raise typer.BadParameter(f"choose from {', '.join(REASONS)}", param_hint="--reason")
    ready()
    zone = screenshots.time_zone()

    def row(rejection: "RejectionView") -> list[str]:
        differs = "" if rejection.distance is None else str(rejection.distance)
        differs += f" of {rejection.threshold}" if differs and rejection.threshold is not None else ""
        return [
            one_line(rejection.source_key, 30),
            local(rejection.ts, zone),
            rejection.reason,
            differs,
            ids.frame(rejection.nearest_id),
            one_line(rejection.detail, 160),
        ]

    print_list(
        screenshots.rejections(source=source, reason=reason, limit=limit),
        ("SOURCE", "CAPTURED", "WHY", "DIFFERS", "NEAREST", "DETAIL"),
        row,
        as_json=as_json,
        none="No frame was rejected.",
    )


def dead_letters(limit: Limit = 100, as_json: Json = False) -> None:
    """List work that has failed finally, with the reasons. `replay` retries it."""
    from pipeline.operations import screenshots

    def row(letter: "DeadLetter") -> list[str]:
        return [letter_id(letter), letter.kind, str(letter.attempts), ago(letter.at), one_line(letter.reason, 300)]

    ready()
    print_list(
        screenshots.dead_letters(limit),
        ("ID", "WHAT", "ATTEMPTS>", "GIVEN UP", "WHY"),
        row,
        as_json=as_json,
        none="No dead letters.",
    )


def replay(
    letters: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID…]", help="Ids that `dead-letters` lists: b4, n17; or 4 --kind batch."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead letters.")] = False,
    kind: Annotated[str, typer.Option(help="batch, merge or vector. Default: the kinds of the ids.")] = "",
) -> None:
    """Retry dead letters. Penstock repeats only failed calls; paid results stay.

    A node's id names its failed merge and its failed vector.

    [bold]penstock screenshots replay b4 n17[/bold], [bold]penstock screenshots replay --all[/bold]
    """
    from pipeline.operations import screenshots

    if bool(letters) == everything:
        raise typer.BadParameter("name dead letters, or --all", param_hint="ID")
    if kind and kind not in KINDS:
        raise typer.BadParameter(f"choose from {', '.join(KINDS)}", param_hint="--kind")
    named = [_named(letter, kind) for letter in letters or []]
    ready()
    if everything:
        done = screenshots.replay_letters(kind=kind).done
    else:
        done = sum(len(screenshots.replay(letter_kinds, numbers)) for letter_kinds, numbers in _given_up(named).items())
    err.print(f"{count(done, 'dead letter')} will be tried again." if done else "No dead letters.")
    if done:
        warn_if_no_stack()


def letter_id(letter: "DeadLetter") -> str:
    """A dead letter's id for people: merges and vectors have their node's id."""
    return ids.batch(letter.id) if letter.kind == "batch" else ids.node(letter.id)


def _named(text: str, kind: str) -> tuple[tuple[str, ...], int]:
    """(the possible kinds of a dead letter with this id, its number). `kind`: only this one; empty: any. Raises
    `typer.BadParameter` if none is possible."""
    older, colon, digits = text.rpartition(":")
    if kind and not colon and digits.isascii() and digits.isdigit():
        return (kind,), int(digits)
    named, number = ids.parse(text)
    of_kind = {ids.Named.BATCH: ("batch",), ids.Named.NODE: ("merge", "vector")}
    named_kinds = (older,) if colon else of_kind.get(named, ())
    kinds = tuple(each_kind for each_kind in named_kinds if each_kind in KINDS and kind in ("", each_kind))
    if not kinds:
        raise typer.BadParameter(f"{text!r} is not a dead letter: write b4 or n17", param_hint="ID")
    return kinds, number


def _given_up(named: list[tuple[tuple[str, ...], int]]) -> dict[str, list[int]]:
    """The numbers of the dead letters by kind. `named`: for each, its possible kinds and its number. Raises `UserError`
    for an unknown one, before replaying any."""
    from pipeline.operations import screenshots

    letters_there = {(letter.kind, letter.id) for letter in screenshots.dead_letters(MOST_LETTERS)}
    numbers_of: dict[str, list[int]] = {}
    none = []
    for kinds, number in named:
        failed_kinds = [kind for kind in kinds if (kind, number) in letters_there]
        none += [] if failed_kinds else [ids.batch(number) if kinds == ("batch",) else ids.node(number)]
        for kind in failed_kinds:
            numbers_of.setdefault(kind, []).append(number)
    if none:
        raise UserError(f"not dead letters: {', '.join(none)}", code="unknown_dead_letter")
    return numbers_of
