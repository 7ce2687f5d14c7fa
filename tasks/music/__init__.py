"""Python's way in to the music flow.

>>> from tasks import music
>>> music.start(skip_sync=True, limit=100)
>>> [match.song.title for match in music.search("a rainy night").matches]

Every function returns plain typed objects. All raise `UserError` with a sentence for people.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict, Unpack

from pipeline.engine.errors import NoWorkerWarning, UserError
from pipeline.engine.logs import configure_as_library
from pipeline.engine.presence import NoWorker
from pipeline.engine.views import PASSING, view_of
from pipeline.flows.music import queries, service
from pipeline.flows.music.estimate import estimate_run, parts
from pipeline.flows.music.library.songs import SyncReport
from pipeline.flows.music.library.sync import OnPage, sync_libraries
from pipeline.flows.music.search import count_searchable, for_words, like_song
from pipeline.flows.music.service import AlreadyRunning, StartOptions
from pipeline.flows.music.states import BatchStatus, Mode, PipelineState, SongStatus
from pipeline.flows.music.views import BatchView, Estimate, Found, MusicStatus, RunFigures, RunView, SongView
from pipeline.operations import watch as watching
from tasks.context import get_context
from tasks.music.canvas import TASKS

__all__ = [
    "AlreadyRunning",
    "BatchStatus",
    "BatchView",
    "Choices",
    "Estimate",
    "Found",
    "Mode",
    "MusicStatus",
    "NoWorker",
    "NoWorkerWarning",
    "PipelineState",
    "Run",
    "RunFigures",
    "RunView",
    "SongStatus",
    "SongView",
    "StartOptions",
    "SyncReport",
    "UserError",
    "batches",
    "estimate",
    "figures",
    "pause",
    "resume",
    "run",
    "runs",
    "search",
    "searchable",
    "show",
    "similar",
    "songs",
    "start",
    "status",
    "stop",
    "sync",
    "watch",
]

configure_as_library()


@dataclass(frozen=True)
class Run(RunView):
    """A run as it was when asked for."""

    no_worker: NoWorker | None = field(default=None, metadata={PASSING: True})
    """Why nobody works on it, as `watch` and `wait` saw it; None if somebody may."""

    def wait(self, timeout_s: float | None = None) -> "Run":
        """Wait until the run has ended (or is paused); the run as it is then.

        Warns (`NoWorkerWarning`) if there is nobody to work. Raises `TimeoutError` after `timeout_s` seconds.
        """
        *_, latest = watch(self.id, timeout_s=timeout_s)
        return latest


def watch(run_id: str, *, timeout_s: float | None = None, idle: Callable[[], object] = lambda: None) -> Iterator[Run]:
    """The run as it is now, and again whenever it changes, until it has ended or is paused.

    While nobody works, `no_worker` says so, and a warning once. `idle` is called about once a second. Raises
    `TimeoutError` after `timeout_s` seconds.
    """
    fleet, seen = watching.Fleet(), None
    looks = watching.watch(
        lambda: replace(_run(queries.run(get_context(), run_id)), no_worker=fleet.no_worker),
        lambda run: int(run.outcome is None and run.status is not PipelineState.PAUSED),
        lambda event: event.get("run") == run_id,
        undone=("run has not ended", "runs have not ended"),
        timeout_s=timeout_s,
        idle=idle,
        fleet=fleet,
    )
    for run in looks:
        if run != seen:
            seen = run
            yield run


def sync(on_page: OnPage = lambda seen, total: None, folder: Path | None = None) -> SyncReport:  # noqa: ARG005
    """Bring the songs in step with the music library (or `folder`), here and now."""
    return sync_libraries(get_context(), on_page, folder)


class Choices(TypedDict, total=False):
    """The fields of `StartOptions`, as keywords of `start` and `estimate`."""

    mode: Mode
    skip_sync: bool
    limit: int | None
    failed: bool


def start(options: StartOptions | None = None, **choices: Unpack[Choices]) -> Run:
    """Begin a run. Options as a `StartOptions`, as keywords, or both: mode, skip_sync, limit, failed.

    Raises `AlreadyRunning` if one is active.
    """
    context, chosen = get_context(), replace(options or StartOptions(), **choices)
    service.check(context.settings, chosen)
    return _launched(service.start(context, chosen, parts(context, chosen)))


def estimate(options: StartOptions | None = None, **choices: Unpack[Choices]) -> Estimate:
    """What `start` with these options would do: a dry run that writes nothing."""
    return estimate_run(get_context(), replace(options or StartOptions(), **choices))


def pause() -> Run:
    """Let calls under way end and begin no others."""
    return _told(service.pause(get_context()))


def resume() -> Run:
    """Go on with a paused run."""
    context = get_context()
    return _launched(service.resume(context, parts(context, StartOptions(skip_sync=True))))


def stop() -> Run:
    """End the run. What was paid for is kept."""
    return _told(service.stop(get_context()))


def status() -> MusicStatus:
    """The status of the pipeline."""
    return queries.status(get_context())


def runs(*, limit: int = 50) -> list[RunView]:
    """Runs, the newest first."""
    return queries.runs(get_context(), limit=limit)


def run(run_id: str) -> RunView:
    """A run by its id."""
    return queries.run(get_context(), run_id)


def figures(run_id: str) -> RunFigures:
    """How far a run is, and what it cost."""
    return queries.run_figures(get_context(), run_id)


def show(reference: str) -> SongView:
    """A song by its number, its library's id or its title."""
    return queries.song(get_context(), reference)


def songs(
    *,
    status: SongStatus | None = None,
    words: str = "",
    run_id: str = "",
    has_vector: bool | None = None,
    limit: int = 50,
    offset: int = 0,
) -> list[SongView]:
    """Songs, in the order in which they were added. `words`: in title, artist or album."""
    return queries.songs(
        get_context(), status=status, words=words, run_id=run_id, has_vector=has_vector, limit=limit, offset=offset
    )


def batches(*, status: BatchStatus | None = None, run_id: str = "", limit: int = 50) -> list[BatchView]:
    """Batches, the newest first; failed ones say why."""
    return queries.batches(get_context(), status=status, run_id=run_id, limit=limit)


def search(words: str, limit: int = 10) -> Found:
    """Songs by what they are called, their albums and tags, and for a mood."""
    return for_words(get_context(), words, limit)


def searchable() -> int:
    """How many songs a search for a mood could find."""
    return count_searchable(get_context())


def similar(reference: str, limit: int = 10) -> Found:
    """Songs like this one."""
    return like_song(get_context(), reference, limit)


def _launched(view: RunView) -> Run:
    TASKS.launch(view.id)
    return _told(queries.last_run(get_context()) or view)


def _told(view: RunView) -> Run:
    TASKS.announce()
    return _run(view)


def _run(view: RunView) -> Run:
    return view_of(Run, view)
