"""`penstock music …`: describe the songs of a library, and find them by words and mood."""

import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.engine.nouns import count
from pipeline.engine.views import plain
from pipeline.interfaces.cli.command import Json, ready, warn_if_no_stack
from pipeline.interfaces.cli.music_runs import runs
from pipeline.interfaces.cli.output import err, escape, one_line, out, print_json, print_list, print_pairs, state
from pipeline.interfaces.cli.progress import Bar, Progress
from pipeline.interfaces.cli.times import span

if TYPE_CHECKING:
    from pipeline.flows.music.views import BatchView, Estimate, Match, MusicStatus, RunView, SearchResult, SongView
    from pipeline.standalone.stack import Stack

FAILED, PARTIAL = 1, 3
_LOOK_S = 0.5

app = typer.Typer(
    help="Sync songs from a music server or a folder, let a model describe them, and find them by words and mood.\n\n"
    "Set PENSTOCK_MUSIC__SERVER_URL, PENSTOCK_MUSIC__USER and PENSTOCK_MUSIC__PASSWORD, or PENSTOCK_MUSIC__FOLDER. "
    'Then [bold]penstock music sync[/bold], and [bold]penstock music search "miles davis"[/bold] needs no provider.\n\n'
    "For moods, set PENSTOCK_MUSIC__PROVIDER too; docs/how-to/music.md has all. Then [bold]penstock music start "
    '--dry-run[/bold], [bold]penstock music start --wait[/bold], [bold]penstock music search "rainy night"[/bold].',
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.command()(runs)


@app.command()
def sync(
    folder: Annotated[
        Path | None, typer.Option(help="Read the tags of this folder's audio files instead of the configured library.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Read all songs from the music library. This calls no provider, flags missing songs, and deletes none."""
    from rich import progress as bars

    from pipeline.operations import music

    ready()
    columns = (bars.TextColumn("songs"), bars.BarColumn(), bars.MofNCompleteColumn(), bars.TimeElapsedColumn())
    with bars.Progress(*columns, console=err, disable=not err.is_terminal) as shown:
        task = shown.add_task("songs", total=None)
        report = music.sync(lambda seen, total: shown.update(task, completed=seen, total=total), folder)
    if as_json:
        print_json(report)
        return
    err.print(
        f"{count(report.seen, 'song')}: {report.added} new, {report.changed} changed, {report.relinked} found again "
        f"under another id, {report.returned} back, {report.missing} gone.",
        soft_wrap=True,
    )
    if report.note:
        err.print(f"[yellow]Note:[/yellow] {one_line(report.note)}.", soft_wrap=True)
    if report.added:
        err.print("Find them by names, albums and genres: `penstock music search WORDS`.", soft_wrap=True)


@app.command()
def start(
    mode: Annotated[
        str, typer.Option(help="full: descriptions and vectors; metadata: descriptions; embedding: vectors only.")
    ] = "full",
    skip_sync: Annotated[bool, typer.Option("--skip-sync", help="Do not read the music library first.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many songs.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Also retry songs that failed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing: estimate calls, cost and time.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; starts a stack if none runs.")] = False,
    as_json: Json = False,
) -> None:
    """Sync, then let the provider describe all pending songs, batch by batch, within its limits.

    Try [bold]penstock music start --dry-run[/bold] first, then [bold]penstock music start --wait --limit 20[/bold].
    Without --wait, the run continues wherever `penstock up` runs; `penstock music status` shows it.
    Only one run may be active. Exit codes: 0 done, 1 failed, refused or stopped, 2 wrong usage,
    3 some songs failed.
    """
    from pipeline.flows.music.service import StartOptions
    from pipeline.flows.music.states import Mode
    from pipeline.operations import music
    from pipeline.standalone.stack import using_stack

    settings = ready()
    if mode not in set(Mode):
        raise typer.BadParameter(f"choose from {', '.join(Mode)}", param_hint="--mode")
    options = StartOptions(Mode(mode), skip_sync, limit, failed)
    if dry_run:
        _show_estimate(music.estimate(options), as_json=as_json)
    elif wait:
        with using_stack(settings) as stack:
            snapshot = _follow(stack, music.start(options), quiet=as_json)
        if as_json:
            print_json(snapshot.contract())
        _print_end(snapshot)
    else:
        _print_result(music.start(options), "started", as_json=as_json)


def _follow(stack: "Stack", run: "RunView", *, quiet: bool) -> "MusicStatus":
    """Show the run's progress until it has ended or another run is active, and keep the stack up; return the pipeline's
    status then."""
    from pipeline.operations import music

    interrupted = (
        "The run stays: `penstock up` continues it, `penstock music start --wait` does not start another, "
        "`penstock music stop` ends it."
    )

    def snapshots(keep: Callable[[], None]) -> "Iterator[MusicStatus]":
        while True:
            snapshot = music.status()
            yield snapshot
            if snapshot.run is None or snapshot.run.id != run.id or snapshot.run.outcome is not None:
                return
            keep()
            time.sleep(_LOOK_S)

    with Progress(stack, interrupted=interrupted, quiet=quiet) as progress:
        return progress.follow(snapshots(progress.keep), _bar)


def _bar(snapshot: "MusicStatus") -> "Bar":
    done = snapshot.completed_jobs + snapshot.failed_jobs
    total = done + snapshot.active_jobs + snapshot.waiting_jobs + snapshot.delayed_jobs
    figures = f"{done:,}/{count(total, 'batch')}"
    figures += f", {snapshot.failed_jobs:,} failed" if snapshot.failed_jobs else ""
    figures += f", {one_line(snapshot.stand_in)} stands in" if snapshot.stand_in else ""
    figures += f" ({one_line(snapshot.reason)})" if snapshot.reason else ""
    return Bar(snapshot.pipeline_state.value, done, total or None, figures, busy=bool(snapshot.active_jobs))


def _print_end(snapshot: "MusicStatus") -> None:
    """Report how a run ended, and exit with 1 if it failed or was stopped, with 3 if some of its songs or batches
    failed; else return."""
    run = snapshot.run
    if run is not None and run.outcome in {"failed", "stopped"}:
        how = f"failed: {run.error}" if run.outcome == "failed" else "was stopped; `penstock music start` continues."
        err.print(f"penstock: the run {how}", soft_wrap=True, markup=False)
        raise typer.Exit(FAILED)
    if snapshot.failed_songs or snapshot.failed_jobs:
        err.print(
            f"{count(snapshot.failed_songs, 'song')} failed: `penstock music show --status failed` says why, "
            "`penstock music start --failed` tries again.",
            soft_wrap=True,
        )
        raise typer.Exit(PARTIAL)
    err.print(f"Done: {count(snapshot.songs.get('COMPLETED', 0), 'song')} of {snapshot.total_songs:,} are described.")


def _show_estimate(estimate: "Estimate", *, as_json: bool) -> None:
    if as_json:
        print_json(estimate)
        return
    unpriced = f"no prices configured for {', '.join(estimate.unpriced)} (PENSTOCK_PROVIDERS__<NAME>__PRICES)"
    if estimate.cost is None:
        cost = f"unknown: {unpriced}"
    else:
        cost = f"about {estimate.cost:,.4f}" + (f"; {unpriced}" if estimate.unpriced else "")
    print_pairs(
        [
            ("songs", f"{estimate.songs:,}" + (f", {estimate.new_songs:,} of them new" if estimate.new_songs else "")),
            ("batches", f"{estimate.batches:,}"),
            ("calls", f"{estimate.metadata_calls:,} for metadata, {estimate.embedding_calls:,} for vectors"),
            ("time", f"{span(estimate.seconds)} at least"),
            *(("limit", f"{name}: {limits or 'none'}") for name, limits in estimate.limits.items()),
            ("tokens", f"about {estimate.input_tokens:,} in, {estimate.output_tokens:,} out"),
            ("cost", cost),
        ]
    )
    out.print("This changed nothing, and called no provider.")


def _print_result(run: "RunView", done: str, *, as_json: bool) -> None:
    if as_json:
        print_json(run)
    else:
        err.print(f"Music pipeline: {done}. Now {run.status.value}.")
    if run.outcome is None and run.status.value != "paused":
        warn_if_no_stack()


@app.command()
def pause(as_json: Json = False) -> None:
    """Let calls in progress finish, and start no others until `resume`."""
    from pipeline.operations import music

    ready()
    _print_result(music.pause(), "paused", as_json=as_json)


@app.command()
def resume(as_json: Json = False) -> None:
    """Continue a paused run."""
    from pipeline.operations import music

    ready()
    _print_result(music.resume(), "resumed", as_json=as_json)


@app.command()
def stop(as_json: Json = False) -> None:
    """End the run. Paid results stay; the other songs become pending again."""
    from pipeline.operations import music

    ready()
    _print_result(music.stop(), "stopped", as_json=as_json)


@app.command()
def status(as_json: Json = False) -> None:
    """Show the state of the pipeline, its songs and its batches."""
    from pipeline.operations import music

    settings = ready()
    snapshot = music.status()
    if as_json:
        print_json(snapshot.contract())
    else:
        _show_status(snapshot, settings.music.provider)


def _show_status(snapshot: "MusicStatus", provider: str) -> None:

    songs = "  ".join(f"{name} {count}" for name, count in snapshot.songs.items()) or "none: `penstock music sync`"
    batches = (
        f"{snapshot.active_jobs} in progress, {snapshot.waiting_jobs} waiting, {snapshot.delayed_jobs} delayed, "
        f"{snapshot.completed_jobs} done, {snapshot.failed_jobs} failed"
    )
    rows = [
        ("state", snapshot.pipeline_state.value + (f" ({escape(snapshot.reason)})" if snapshot.reason else "")),
        ("songs", songs + (f"  missing {snapshot.missing_songs}" if snapshot.missing_songs else "")),
        ("vectors", f"{snapshot.songs_with_vector} songs have one"),
        ("batches", batches),
    ]
    if not provider:
        rows.append(("provider", "none: search matches songs by words; `penstock music start` makes vectors"))
    if snapshot.stand_in:
        rows.append(("stand-in", f"{escape(snapshot.stand_in)} writes metadata: the provider's breaker is open"))
    rows.append(("workers", "running" if snapshot.is_worker_running else "none running: `penstock up` starts them"))
    if snapshot.run is not None:
        ended = snapshot.run.outcome or "active"
        failed = f", {snapshot.failed_songs} failed" if snapshot.failed_songs else ""
        rows.append(
            ("run", f"{snapshot.run.id[:8]} {snapshot.run.mode.value}, {snapshot.run.enqueued} songs{failed}, {ended}")
        )
        if snapshot.run.error:
            rows.append(("error", escape(snapshot.run.error)))
    print_pairs(rows)


@app.command()
def search(
    words: Annotated[
        str, typer.Argument(help="Words of titles, artists, albums, genres or tags, or a mood: 'rainy night, slow'.")
    ] = "",
    like: Annotated[str, typer.Option(help="Find songs like this one instead: number, id or title.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most this many songs.")] = 10,
    as_json: Json = False,
) -> None:
    """Find songs by their words, for a mood, or like another song.

    Search knows names, albums, genres and years after a sync, tags and moods once songs have descriptions.
    With an embeddings provider, a mood costs one small call, which needs a stack; the command starts one if none runs.
    For example: [bold]penstock music search "rainy night, slow piano"[/bold], or
    [bold]penstock music search --like "So What"[/bold].
    """
    from pipeline.operations import music
    from pipeline.standalone.stack import using_stack

    if bool(words.strip()) == bool(like.strip()):
        raise typer.BadParameter("give either words, or a song with --like", param_hint="WORDS")
    settings = ready()
    if like:
        result = music.similar(like, limit)
    elif settings.music.embeddings_provider and music.searchable():
        # The call goes through the gate, which needs the stack.
        with using_stack(settings):
            result = music.search(words, limit)
    else:
        result = music.search(words, limit)
    if as_json:
        print_json(result)
        return
    for note in _notes(result, has_provider=bool(settings.music.provider)):
        err.print(f"[dim]{note}[/dim]", soft_wrap=True)

    def row(match: "Match") -> list[str]:
        song = match.song
        return [
            "words" if match.score is None else f"{match.score:.2f}",
            str(song.id),
            _called(song),
            one_line(song.album, 40),
            one_line(song.mood, 20),
            one_line(", ".join(song.tags or [song.genre]), 60),
        ]

    none = "Nothing found." if result.songs else "No songs: `penstock music sync` reads them."
    columns = ("SCORE>", "ID>", "SONG", "ALBUM?", "MOOD?", "TAGS?")
    print_list(result.matches, columns, row, as_json=False, none=none)


def _notes(result: "SearchResult", *, has_provider: bool) -> Iterator[str]:
    """Yield what the search could not do, as sentences: search by mood without descriptions, by meaning without
    vectors, or find all the words in one song."""
    if result.songs and not result.searched:
        how = "`penstock music start`" if has_provider else "`penstock music start` says what it takes"
        yield f"By names, albums, genres and years alone, not by mood: no song is described yet ({how})."
    elif result.songs and result.lexical:
        setting = "PENSTOCK_MUSIC__EMBEDDINGS_PROVIDER"
        yield f"By words alone, not by meaning: set an embeddings provider ({setting})."
    if result.any_word and result.matches:
        yield "No song has all the words: matches by words have some of them."


@app.command()
def show(
    song: Annotated[str, typer.Argument(help="Number, library id or title. Default: list songs.")] = "",
    status: Annotated[str, typer.Option(help="In a list, only songs in this state, such as FAILED.")] = "",
    batches: Annotated[bool, typer.Option("--batches", help="List batches instead, with the reasons of failures.")] = (
        False
    ),
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="List at most this many.")] = 50,
    as_json: Json = False,
) -> None:
    """Show everything about a song, or list songs or batches."""
    from pipeline.flows.music.states import BatchStatus, SongStatus
    from pipeline.operations import music

    ready()
    if song:
        _show_song(music.show(song), as_json=as_json)
    elif batches:
        _list_batches(music.batches(status=_one_of(BatchStatus, status), limit=limit), as_json=as_json)
    else:
        _list_songs(music.songs(status=_one_of(SongStatus, status), limit=limit), as_json=as_json)


class BatchAct(StrEnum):
    """An act on one batch."""

    RETRY = "retry"
    PROMOTE = "promote"
    REMOVE = "remove"


@app.command()
def batch(
    act: Annotated[
        BatchAct,
        typer.Argument(
            help="retry: let a failed batch do its step again; promote: end its wait before the next attempt; "
            "remove: delete it, its waiting songs are pending again."
        ),
    ],
    batch_id: Annotated[int, typer.Argument(metavar="BATCH", help="Its number, as in `show --batches`.")],
    as_json: Json = False,
) -> None:
    """Retry, promote or remove one batch."""
    from pipeline.operations import music

    ready()
    if act is BatchAct.REMOVE:
        music.remove_batch(batch_id)
        out.print(f"Batch {batch_id} is removed.")
        return
    changed = music.retry_batch(batch_id) if act is BatchAct.RETRY else music.promote_batch(batch_id)
    _list_batches([changed], as_json=as_json)


def _one_of(kind: Any, name: str) -> Any:
    if not name:
        return None
    if name.upper() not in kind.__members__:
        raise typer.BadParameter(f"choose from {', '.join(kind.__members__)}", param_hint="--status")
    return kind[name.upper()]


def _show_song(view: "SongView", *, as_json: bool) -> None:

    if as_json:
        print_json(view)
        return
    rows = []
    for name, value in plain(view).items():
        if value not in (None, "", []) and name != "analysis":
            text = ", ".join(value) if isinstance(value, list) else str(value)
            rows.append((name.replace("_", " "), escape(text)))
    print_pairs(rows)


def _called(song: "SongView") -> str:
    return one_line(" - ".join(filter(None, (song.artist, song.title))), 60)


def _list_songs(songs: "list[SongView]", *, as_json: bool) -> None:
    def row(view: "SongView") -> list[str]:
        missing = " (missing)" if view.missing_since else ""
        return [
            str(view.id),
            _called(view),
            state(view.status.value) + missing,
            one_line(view.mood, 20),
            "yes" if view.vector_model else "",
            one_line(view.error, 80),
        ]

    print_list(
        songs,
        ("ID>", "SONG", "STATE", "MOOD", "VECTOR", "ERROR"),
        row,
        as_json=as_json,
        none="No songs. `penstock music sync` reads them.",
    )


def _list_batches(batches: "list[BatchView]", *, as_json: bool) -> None:
    def row(view: "BatchView") -> list[str]:
        return [
            str(view.id),
            view.mode.value,
            view.step.value,
            state(view.status.value),
            str(len(view.song_ids)),
            str(view.saved),
            str(view.left_out),
            str(view.ignored),
            str(view.retry_count),
            one_line(view.error, 120),
        ]

    columns = ("ID>", "MODE", "STEP", "STATE", "SONGS>", "SAVED>", "LEFT OUT>", "IGNORED>", "RETRIES>", "ERROR")
    print_list(batches, columns, row, as_json=as_json, none="No batches.")
