"""`penstock music …`: songs from a library, described and made findable."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pipeline.settings import Settings
    from tasks.music import Estimate, MusicStatus, RunView, SongView

app = typer.Typer(
    help="Sync songs from a music server or a folder, let a model describe them, and search them by mood.\n\n"
    "Set PENSTOCK_MUSIC__SERVER_URL, PENSTOCK_MUSIC__USER and PENSTOCK_MUSIC__PASSWORD (or PENSTOCK_MUSIC__FOLDER), "
    "and PENSTOCK_MUSIC__PROVIDER; docs/music.md has all. Then: [bold]penstock music sync[/bold], "
    "[bold]penstock music start --dry-run[/bold], [bold]penstock music start --wait[/bold], "
    '[bold]penstock music search "rainy night"[/bold].',
    no_args_is_help=True,
    rich_markup_mode="rich",
)
Json = Annotated[bool, typer.Option("--json", help="As JSON on standard output.")]


def _ready() -> "Settings":
    from pipeline.settings import get_settings
    from pipeline.standalone.stack import migrate_embedded

    settings = get_settings()
    migrate_embedded(settings)
    return settings


@app.command()
def sync(
    folder: Annotated[
        Path | None, typer.Option(help="Read the tags of this folder's audio files instead of what is configured.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Read all songs from the music library. Songs that are gone are flagged, never deleted; nothing is paid for."""
    from rich import progress as bars

    from pipeline.interfaces.cli.output import err, print_json
    from tasks import music

    _ready()
    columns = (bars.TextColumn("songs"), bars.BarColumn(), bars.MofNCompleteColumn(), bars.TimeElapsedColumn())
    with bars.Progress(*columns, console=err, disable=not err.is_terminal) as shown:
        task = shown.add_task("songs", total=None)
        report = music.sync(lambda seen, total: shown.update(task, completed=seen, total=total), folder)
    if as_json:
        print_json(vars(report))
        return
    err.print(
        f"{report.seen} songs: {report.added} new, {report.changed} changed, {report.relinked} found again under "
        f"another id, {report.returned} back, {report.missing} gone.", soft_wrap=True,
    )  # fmt: skip
    if report.note:
        err.print(f"[yellow]Note:[/yellow] {report.note}.", soft_wrap=True)


@app.command()
def start(
    mode: Annotated[
        str, typer.Option(help="full: descriptions and vectors; metadata: descriptions; embedding: vectors only.")
    ] = "full",
    skip_sync: Annotated[bool, typer.Option("--skip-sync", help="Do not read the music library first.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many songs.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Try songs once more that failed, too.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing: say how many calls, what cost, how long.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until it is done; starts the stack if none runs.")] = False,
    as_json: Json = False,
) -> None:
    """Sync, then let the provider describe all pending songs, batch by batch, within its limits.

    Try [bold]penstock music start --dry-run[/bold] first, then [bold]penstock music start --wait --limit 20[/bold].
    Without --wait the run goes on by itself wherever `penstock up` is running; `penstock music status` shows it.
    Starting again while a run is active is refused. Exit codes: 0 done, 1 failed, refused or stopped, 2 wrong usage,
    3 some songs failed.
    """
    from pipeline.interfaces.cli.music_progress import follow, tell_end
    from pipeline.interfaces.cli.output import print_json
    from pipeline.standalone.stack import using_stack
    from tasks import music

    settings = _ready()
    if mode not in set(music.Mode):
        raise typer.BadParameter(f"choose from {', '.join(music.Mode)}", param_hint="--mode")
    options = music.StartOptions(music.Mode(mode), skip_sync, limit, failed)
    if dry_run:
        _show_estimate(music.estimate(options), as_json=as_json)
    elif wait:
        with using_stack(settings) as stack:
            found = follow(stack, music.start(options), quiet=as_json)
        if as_json:
            print_json(found.contract())
        tell_end(found)
    else:
        _tell(music.start(options), "started", as_json=as_json)


def _show_estimate(found: "Estimate", *, as_json: bool) -> None:
    from pipeline.flows.music.views import as_json as plain
    from pipeline.interfaces.cli.output import out, print_json, print_pairs

    if as_json:
        print_json(plain(found))
        return
    print_pairs([
        ("songs", f"{found.songs:,}" + (f", {found.new_songs:,} of them new" if found.new_songs else "")),
        ("batches", f"{found.batches:,}"),
        ("calls", f"{found.metadata_calls:,} for metadata, {found.embedding_calls:,} for vectors"),
        ("time", f"{_duration(found.seconds)} at least"),
        *(("limit", f"{name}: {limits or 'none'}") for name, limits in found.limits.items()),
        ("tokens", f"about {found.input_tokens:,} in, {found.output_tokens:,} out"),
        ("cost", _cost(found)),
    ])  # fmt: skip
    out.print("Nothing was changed, and no provider was called.")


def _cost(found: "Estimate") -> str:
    set_them = "PENSTOCK_PROVIDERS__<NAME>__PRICES"
    if found.cost is None:
        return f"unknown: no prices configured for {', '.join(found.unpriced)} ({set_them})"
    more = f", without {', '.join(found.unpriced)}: no prices configured ({set_them})" if found.unpriced else ""
    return f"about {found.cost:,.4f}" + more


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _tell(run: "RunView", done: str, *, as_json: bool = False) -> None:
    """Say what was done; where nothing runs that could go on with it, say how to start it."""
    from pipeline.flows.music.views import as_json as plain
    from pipeline.interfaces.cli.output import err, print_json
    from pipeline.storage.context import get_context

    if as_json:
        print_json(plain(run))
    else:
        err.print(f"Music pipeline: {done}. Now {run.status.value}.")
    if run.outcome is None and run.status.value != "paused" and not get_context().online:
        err.print("Nothing is running here: `penstock up` goes on with it.")


@app.command()
def pause(as_json: Json = False) -> None:
    """Let calls under way end, and begin no others until `resume`."""
    from tasks import music

    _ready()
    _tell(music.pause(), "paused", as_json=as_json)


@app.command()
def resume(as_json: Json = False) -> None:
    """Go on with a paused run."""
    from tasks import music

    _ready()
    _tell(music.resume(), "resumed", as_json=as_json)


@app.command()
def stop(as_json: Json = False) -> None:
    """End the run. What was paid for is kept; other songs are pending again."""
    from tasks import music

    _ready()
    _tell(music.stop(), "stopped", as_json=as_json)


@app.command()
def status(as_json: Json = False) -> None:
    """Show how the pipeline stands."""
    from pipeline.interfaces.cli.output import print_json
    from tasks import music

    _ready()
    found = music.status()
    if as_json:
        print_json(found.contract())
    else:
        _show_status(found)


def _show_status(found: "MusicStatus") -> None:
    from rich.markup import escape

    from pipeline.interfaces.cli.output import print_pairs

    songs = "  ".join(f"{name} {count}" for name, count in found.songs.items()) or "none: `penstock music sync`"
    batches = (
        f"{found.active_jobs} under way, {found.waiting_jobs} waiting, {found.delayed_jobs} delayed, "
        f"{found.completed_jobs} done, {found.failed_jobs} failed"
    )
    rows = [
        ("state", found.pipeline_state.value + (f" ({escape(found.reason)})" if found.reason else "")),
        ("songs", songs + (f"  missing {found.missing_songs}" if found.missing_songs else "")),
        ("batches", batches),
    ]
    if found.stand_in:
        rows.append(("stand-in", f"{escape(found.stand_in)} writes metadata: the provider's breaker is open"))
    rows.append(("workers", "running" if found.is_worker_running else "none: `penstock up` starts them"))
    if found.run is not None:
        ended = found.run.outcome or "active"
        failed = f", {found.failed_songs} failed" if found.failed_songs else ""
        rows.append(("run", f"{found.run.id[:8]} {found.run.mode.value}, {found.run.enqueued} songs{failed}, {ended}"))
        if found.run.error:
            rows.append(("error", escape(found.run.error)))
    print_pairs(rows)


@app.command()
def search(
    words: Annotated[str, typer.Argument(help="A mood in words, such as 'rainy night, slow'.")] = "",
    like: Annotated[str, typer.Option(help="Songs like this one instead: number, id or title.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many songs.")] = 10,
    as_json: Json = False,
) -> None:
    """Find songs for a mood, or like another song.

    With a provider of embeddings, a mood costs one small call, and needs a stack, which is started if none runs.
    For example: [bold]penstock music search "rainy night, slow piano"[/bold], or
    [bold]penstock music search --like "So What"[/bold].
    """
    from pipeline.flows.music.views import as_json as plain
    from pipeline.interfaces.cli.output import Table, err, one_line, print_json
    from pipeline.standalone.stack import using_stack
    from tasks import music

    if bool(words.strip()) == bool(like.strip()):
        raise typer.BadParameter("say a mood, or --like a song", param_hint="WORDS")
    settings = _ready()
    if like:
        found = music.similar(like, limit)
    elif settings.music.embeddings_provider and music.searchable():
        # The call goes through the gate, which needs the stack.
        with using_stack(settings):
            found = music.search(words, limit)
    else:
        found = music.search(words, limit)
    if as_json:
        print_json(plain(found))
        return
    if found.lexical:
        err.print(
            "[dim]By words alone: no provider of embeddings is configured, so this knows no meaning "
            "(PENSTOCK_MUSIC__EMBEDDINGS_PROVIDER).[/dim]", soft_wrap=True,
        )  # fmt: skip
    if not found.matches:
        err.print("Nothing found." if found.searched else "No song has a vector yet: `penstock music start`.")
        return
    rows = Table("SCORE>", "ID>", "SONG", "MOOD", "TAGS")
    for match in found.matches:
        song = match.song
        rows.add(
            f"{match.score:.2f}", str(song.id), one_line(f"{song.artist} - {song.title}", 60),
            one_line(song.mood, 20), one_line(", ".join(song.tags), 60),
        )  # fmt: skip
    rows.print()


@app.command()
def show(
    song: Annotated[str, typer.Argument(help="Number, library's id or title. Default: list songs.")] = "",
    status: Annotated[str, typer.Option(help="Of the list, only songs in this state, such as FAILED.")] = "",
    batches: Annotated[bool, typer.Option("--batches", help="List batches instead, with the reasons of failures.")] = (
        False
    ),
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")] = 50,
    as_json: Json = False,
) -> None:
    """Show everything about a song, or list songs or batches."""
    from pipeline.flows.music.views import as_json as plain
    from pipeline.interfaces.cli.output import print_json
    from tasks import music

    _ready()
    if song:
        view = music.show(song)
        print_json(plain(view)) if as_json else _show_song(view)
        return
    if batches:
        _list_batches(limit, status, as_json=as_json)
        return
    found = music.songs(status=_one_of(music.SongStatus, status), limit=limit)
    if as_json:
        print_json([plain(view) for view in found])
    else:
        _list_songs(found)


def _one_of(kind: Any, name: str) -> Any:
    if not name:
        return None
    if name.upper() not in kind.__members__:
        raise typer.BadParameter(f"choose from {', '.join(kind.__members__)}", param_hint="--status")
    return kind[name.upper()]


def _show_song(view: "SongView") -> None:
    from rich.markup import escape

    from pipeline.flows.music.views import as_json as plain
    from pipeline.interfaces.cli.output import print_pairs, printable

    rows = []
    for name, value in plain(view).items():
        if value not in (None, "", []) and name != "analysis":
            text = ", ".join(value) if isinstance(value, list) else str(value)
            rows.append((name.replace("_", " "), escape(printable(text))))
    print_pairs(rows)


def _list_songs(found: "list[SongView]") -> None:
    from pipeline.interfaces.cli.output import Table, err, one_line, state

    if not found:
        err.print("No songs. `penstock music sync` reads them.")
        return
    rows = Table("ID>", "SONG", "STATE", "MOOD", "VECTOR", "ERROR")
    for view in found:
        gone = " (missing)" if view.missing_since else ""
        rows.add(
            str(view.id), one_line(f"{view.artist} - {view.title}", 60), state(view.status.value) + gone,
            one_line(view.mood, 20), "yes" if view.vector_model else "", one_line(view.error, 80),
        )  # fmt: skip
    rows.print()


def _list_batches(limit: int, status: str, *, as_json: bool) -> None:
    from pipeline.flows.music.views import as_json as plain
    from pipeline.interfaces.cli.output import Table, one_line, print_json, state
    from tasks import music

    found = music.batches(status=_one_of(music.BatchStatus, status), limit=limit)
    if as_json:
        print_json([plain(view) for view in found])
        return
    rows = Table("ID>", "MODE", "STEP", "STATE", "SONGS>", "SAVED>", "LEFT OUT>", "IGNORED>", "RETRIES>", "ERROR")
    for view in found:
        rows.add(
            str(view.id), view.mode.value, view.step.value, state(view.status.value), str(len(view.song_ids)),
            str(view.saved), str(view.left_out), str(view.ignored), str(view.retry_count), one_line(view.error, 120),
        )  # fmt: skip
    rows.print()
