"""`penstock kb add` and `wait`: add items to a base, and wait for them."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.engine.errors import UserError
from pipeline.engine.nouns import count
from pipeline.interfaces.cli.command import Json, ready, warn_if_no_stack
from pipeline.interfaces.cli.knowledge.bases import Base
from pipeline.interfaces.cli.output import err, one_line, print_json
from pipeline.interfaces.cli.progress import Bar, Progress, Words

if TYPE_CHECKING:
    from pipeline.flows.knowledge.intake import Added, Refused, Source
    from pipeline.flows.knowledge.views import ItemView, Tally
    from pipeline.standalone.stack import Stack

DONE, FAILED, PARTIAL = 0, 1, 3
_LOOK_S = 0.5
_STDIN = "-"
_MOST_TYPED = 200_000_000
"""Bytes."""
_THERE = "duplicate"


@dataclass
class _Outcome:
    """The outcome of all sources."""

    created: "list[ItemView]" = field(default_factory=list)
    changed: "list[ItemView]" = field(default_factory=list)
    unchanged: int = 0
    ignored: int = 0
    gone: list[str] = field(default_factory=list)
    there: "list[Refused]" = field(default_factory=list)
    """What was in the base already."""
    failed: "list[Refused]" = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def take(self, added: "Added") -> None:
        self.created += added.created
        self.there += [failure for failure in added.failed if failure.code == _THERE]
        self.failed += [failure for failure in added.failed if failure.code != _THERE]
        self.warnings += added.warnings
        for name in ("changed", "gone", "unchanged", "ignored"):
            setattr(self, name, getattr(self, name) + getattr(added, name, type(getattr(self, name))()))

    @property
    def ids(self) -> list[str]:
        """The ids of the items to wait for: added, changed, or in the base already."""
        there = [failure.item_id for failure in self.there if failure.item_id]
        return list(dict.fromkeys([*(item.id for item in [*self.created, *self.changed]), *there]))


def add(
    base: Base,
    sources: Annotated[
        list[str] | None, typer.Argument(metavar="[PATH|URL]…", help="Files, folders, or addresses of web pages.")
    ] = None,
    note: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="A note, in Markdown; - reads it from standard input.")
    ] = None,
    sitemap: Annotated[
        bool, typer.Option("--sitemap", help="The addresses are sitemaps: each with all of its pages is one item.")
    ] = False,
    name: Annotated[str, typer.Option(help="The item's name; for one file, address or note.")] = "",
    keep_gone: Annotated[
        bool, typer.Option("--keep-gone", help="Keep items whose files are gone from a folder that you add again.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Delete items of missing files even if most or all are missing.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; starts a stack if none runs.")] = False,
    as_json: Json = False,
) -> None:
    """Add files, folders, web pages or notes to a base.

    [bold]penstock kb add manuals manual.pdf faq.docx --wait[/bold]
    [bold]penstock kb add manuals docs/[/bold]                     the files in docs/ and in the folders in it
    [bold]penstock kb add manuals https://example.com/help[/bold]
    [bold]penstock kb add manuals https://example.com/sitemap.xml --sitemap[/bold]
    [bold]penstock kb add manuals --note "The key is under the mat."[/bold]

    Files are copied; yours stay where they are. A base has one item for a file, whether you name the file or its
    folder: adding the file again changes nothing, or reads it again if its content changed. Adding a folder again adds
    new files, reads changed ones again, and deletes the items of missing files, except those that you first added by
    name. If all files of a folder are missing, or more than half of four or more, it deletes nothing without --yes: a
    disk may be unmounted.

    Exit codes: 0 done, 1 nothing added or read, 2 wrong usage, 3 some sources failed, 130 interrupted.
    """
    from pipeline.operations import knowledge
    from pipeline.standalone.stack import using_stack

    settings = ready()
    view = knowledge.base(base)
    gone = {"keep_gone": keep_gone, "accept_missing": yes}
    single, folders = _sources(sources or [], note or [], sitemap=sitemap, name=name)
    outcome, tally = _Outcome(), None
    if wait:
        with using_stack(settings) as stack:
            _add(view.id, single, folders, outcome, gone, quiet=as_json)
            if outcome.ids:
                tally = _follow(stack, view.id, outcome.ids, quiet=as_json)
    else:
        _add(view.id, single, folders, outcome, gone, quiet=as_json)
    if as_json:
        print_json({**vars(outcome), "items": tally.states if tally else None})
    else:
        _print_result(outcome)
        if tally is not None:
            _print_end(view.id, tally)
        elif outcome.ids or outcome.gone:
            warn_if_no_stack()
    raise typer.Exit(_code(outcome, tally))


def _sources(
    named: Sequence[str], notes: Sequence[str], *, sitemap: bool, name: str
) -> "tuple[list[Source], list[Path]]":
    """(files, addresses and notes; folders) from the arguments. Raises `UserError`, `typer.BadParameter`."""
    from pipeline.flows.knowledge.intake import Source
    from pipeline.flows.knowledge.states import ItemType

    single: list[Source] = []
    folders: list[Path] = []
    for text in named:
        if "://" in text:
            single.append(Source(ItemType.SITEMAP if sitemap else ItemType.URL, url=text, name=name))
        elif sitemap:
            raise typer.BadParameter(f"{text} is not an address that begins with https://", param_hint="--sitemap")
        elif not text:
            raise typer.BadParameter("a file name is empty", param_hint="PATH")  # an unset "$FILE" in a script
        elif Path(text).is_dir():
            folders.append(Path(text))
        else:
            # Follow a link that the user names, but no link in a folder. Errors show the name as typed.
            single.append(Source.of_file(Path(text).resolve(), name or text))
    single += [Source(ItemType.NOTE, text=_typed() if text == _STDIN else text, name=name) for text in notes]
    if not single and not folders:
        raise UserError("name files, folders or addresses, or write a note with --note", code="usage")
    if name and (len(single) != 1 or folders):
        raise UserError("--name is for one file, address or note", code="usage")
    return single, folders


def _typed() -> str:
    """Standard input as text, cut at `_MOST_TYPED` bytes. The flow refuses a note above the limit of the settings."""
    return sys.stdin.buffer.read(_MOST_TYPED).decode("utf-8", "replace")


def _add(
    base_id: str,
    single: "Sequence[Source]",
    folders: Sequence[Path],
    outcome: _Outcome,
    gone: Mapping[str, bool],
    *,
    quiet: bool,
) -> None:
    from rich import progress as bars

    from pipeline.flows.knowledge.intake import Refused
    from pipeline.operations import knowledge

    columns = (Words(), bars.BarColumn(), bars.MofNCompleteColumn())
    with bars.Progress(*columns, console=err, disable=quiet or not err.is_terminal) as shown:

        def progress_of(label: str) -> Callable[[int, int], object]:
            task = shown.add_task(label, total=None)
            return lambda seen, total: shown.update(task, completed=seen, total=total)

        if single:
            outcome.take(knowledge.add(base_id, single, progress_of("adding")))
        for folder in folders:
            try:
                progress = progress_of(one_line(folder.name, 40))
                outcome.take(knowledge.add_directory(base_id, folder, **gone, progress=progress))
            except UserError as error:
                outcome.failed.append(Refused(str(folder), str(error), error.code))


def _print_result(outcome: _Outcome) -> None:
    from pipeline.flows.knowledge.states import MOSTLY_MISSING

    for sentence in outcome.warnings:
        err.print(f"[yellow]Note:[/yellow] {one_line(sentence)}", soft_wrap=True)
    for failure in outcome.failed:
        why = failure.error.removeprefix(failure.path).removeprefix(": ")
        refusal, remedy = "not added", ""
        if failure.code == MOSTLY_MISSING:
            refusal, remedy = "nothing deleted", " If they are really gone, repeat the command with --yes."
        name = one_line(failure.path) or "a note"
        err.print(f"{name}: [red]{refusal}[/red]: {one_line(why)}{remedy}", soft_wrap=True)
    parts = [f"{count(len(outcome.created), 'item')} added"]
    figures = {
        "changed: will be read again": len(outcome.changed),
        "unchanged": outcome.unchanged,
        "missing: being deleted": len(outcome.gone),
        "there already": len(outcome.there),
        "hidden: left out": outcome.ignored,
    }
    parts += [f"{number:,} {label}" for label, number in figures.items() if number]
    refused = sum(refused.code != MOSTLY_MISSING for refused in outcome.failed)
    parts += [f"[red]{refused:,} not added[/red]"] if refused else []
    err.print(", ".join(parts) + ".", soft_wrap=True)


def _code(outcome: _Outcome, tally: "Tally | None") -> int:
    """The exit code: 0 without failures, 1 if nothing else than failures, 3 for both. Items that failed later count if
    the command waited for them."""
    failed_later = tally.states.get("failed", 0) if tally else 0
    problems = len(outcome.failed) + failed_later
    done = len(outcome.ids) + outcome.unchanged + len(outcome.gone) - failed_later
    return DONE if not problems else PARTIAL if done else FAILED


def wait(
    base: Base,
    timeout: Annotated[str, typer.Option(help="Give up after this time: 90s, 10m, 2h.")] = "",
    as_json: Json = False,
) -> None:
    """Wait until every item of a base is completed or failed; start a stack if none runs.

    Exit codes: 0 all completed, 1 all failed or time ran out, 3 some failed, 130 interrupted.
    """
    from pipeline.interfaces.cli.times import duration_s
    from pipeline.operations import knowledge
    from pipeline.standalone.stack import using_stack

    patience_s, settings = duration_s(timeout), ready()
    view = knowledge.base(base)
    tally = knowledge.tally(view.id)
    if tally.open:
        with using_stack(settings) as stack:
            tally = _follow(stack, view.id, None, quiet=as_json, timeout_s=patience_s)
    if as_json:
        print_json(tally)
    else:
        _print_end(view.id, tally)
    if tally.open:
        raise UserError(f"{count(tally.open, 'item')} are still open after {timeout}", code="timeout")
    failed = tally.states.get("failed", 0)
    raise typer.Exit(DONE if not failed else PARTIAL if tally.total > failed else FAILED)


def _follow(
    stack: "Stack", base_id: str, item_ids: Sequence[str] | None, *, quiet: bool, timeout_s: float | None = None
) -> "Tally":
    """Show the progress of items (None: all of the base) until none is open or `timeout_s` has passed, and keep the
    stack up; return the last tally."""
    from pipeline.operations import knowledge

    interrupted = (
        "Interrupted. Nothing is lost: `penstock kb wait` or `penstock up` continues. "
        "`penstock kb status` says what waits."
    )
    until = time.monotonic() + timeout_s if timeout_s is not None else None

    def snapshots(keep: Callable[[], None]) -> "Iterator[Tally]":
        while True:
            tally = knowledge.tally(base_id, item_ids)
            yield tally
            if not tally.open or (until is not None and time.monotonic() > until):
                return
            keep()
            time.sleep(_LOOK_S)

    with Progress(stack, interrupted=interrupted, quiet=quiet) as progress:
        return progress.follow(snapshots(lambda: progress.keep(lambda: _reasons(base_id))), _bar)


def _reasons(base_id: str) -> list[str]:
    """A sentence for each different reason why items in work wait."""
    from pipeline.operations import knowledge

    active = knowledge.queue(base_id).active_item_ids
    reasons = {standing.reason: None for standing in knowledge.standings(active).values() if standing.reason}
    return [f"items wait: {reason}" for reason in reasons]


def _bar(tally: "Tally") -> Bar:
    figures = f"{tally.total - tally.open:,}/{count(tally.total, 'item')}"
    failed = tally.states.get("failed", 0)
    figures += f", {failed:,} failed" if failed else ""
    return Bar("knowledge", tally.progress, 100, figures)


def _print_end(base_id: str, tally: "Tally") -> None:
    states: dict[str, Any] = tally.states
    err.print(f"{count(states.get('completed', 0), 'item')} of {tally.total:,} can be searched.")
    if states.get("failed"):
        err.print(
            f"[red]{count(states['failed'], 'item')} failed[/red]: `penstock kb items {base_id} --status failed` says "
            f"why, `penstock kb reprocess --failed {base_id}` tries again.",
            soft_wrap=True,
        )
