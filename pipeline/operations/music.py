"""Operations of the music flow: sync the library, start and command runs, find songs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import TypedDict, Unpack

from pipeline.engine.presence import NoWorker
from pipeline.engine.views import PASSING, view_of
from pipeline.flows.music import batches as commands
from pipeline.flows.music import estimate as estimates
from pipeline.flows.music import queries, service
from pipeline.flows.music import search as searching
from pipeline.flows.music.library.songs import SyncReport
from pipeline.flows.music.library.sync import OnPage, sync_libraries
from pipeline.flows.music.live_settings import batch_size
from pipeline.flows.music.service import StartOptions
from pipeline.flows.music.states import BatchStatus, Mode
from pipeline.flows.music.views import BatchView, Estimate, RunView
from pipeline.operations import watch as watching
from pipeline.operations.caller import Caller, owner
from pipeline.operations.operation import acts, operation, reads
from pipeline.operations.quotas import SEARCHES
from pipeline.operations.refusal import Refused
from pipeline.storage.api_keys import Scope

_SYNC = Lock()


@dataclass(frozen=True)
class Run(RunView):
    """A run's state at the time of the call."""

    no_worker: NoWorker | None = field(default=None, metadata={PASSING: True})
    """Why no worker can take it, as `watch` and `wait` report; None if a worker runs."""

    def wait(self, timeout_s: float | None = None) -> "Run":
        """Wait until the run ends or pauses; returns the run.

        Warns (`NoWorkerWarning`) if no worker runs. Raises `TimeoutError` after `timeout_s` seconds.
        """
        *_, latest = watch(self.id, timeout_s=timeout_s)
        return latest


def watch(run_id: str, *, timeout_s: float | None = None, idle: Callable[[], object] = lambda: None) -> Iterator[Run]:
    """Yield the run's current state, and each changed one, until it ends or pauses.

    While no worker runs, `no_worker` is set; the first time, a `NoWorkerWarning` follows. Calls `idle` about once a
    second. Raises `TimeoutError` after `timeout_s` seconds.
    """
    context, fleet, seen = owner().context, watching.Fleet(), None
    looks = watching.watch(
        lambda: replace(_run(queries.run(context, run_id)), no_worker=fleet.no_worker),
        lambda run: int(not run.settled),
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


@operation(Scope.WRITE)
def sync(
    caller: Caller,
    on_page: OnPage = lambda seen, total: None,  # noqa: ARG005
    folder: Path | None = None,
) -> SyncReport:
    """Sync the songs with the music library (or with the files in `folder`) in this process, until that is done.

    A server runs one sync at a time. During that, raises `Refused` (409) for any other request, also of the same
    caller.
    """
    if caller.quotas is None:
        return sync_libraries(caller.context, on_page, folder)
    if not _SYNC.acquire(blocking=False):
        raise Refused("a sync of the library already runs", code="already_running")
    try:
        return sync_libraries(caller.context, on_page, folder)
    finally:
        _SYNC.release()


class Choices(TypedDict, total=False):
    """The fields of `StartOptions`, as keywords of `start` and `estimate`."""

    mode: Mode
    skip_sync: bool
    limit: int | None
    failed: bool


@operation(Scope.WRITE, spends=True)
def start(caller: Caller, options: StartOptions | None = None, **choices: Unpack[Choices]) -> Run:
    """Start a run; return it without waiting for its end. Takes options as a `StartOptions`, as keywords, or both:
    mode, skip_sync, limit, failed; keywords win.

    Raises `AlreadyRunning` if a run is active, and `UserError` for options with which it would fail later.
    """
    context, chosen = caller.context, replace(options or StartOptions(), **choices)
    return _run(service.start(context, chosen, estimates.parts(context, chosen)))


@operation(Scope.READ)
def estimate(caller: Caller, options: StartOptions | None = None, **choices: Unpack[Choices]) -> Estimate:
    """Return what `start` with these options would process and cost. Changes nothing."""
    return estimates.estimate_run(caller.context, replace(options or StartOptions(), **choices))


@operation(Scope.WRITE)
def pause(caller: Caller) -> Run:
    """Pause the active run: let calls under way end, and start no others. Raises `UserError` without an active run."""
    return _run(service.pause(caller.context))


@operation(Scope.WRITE, spends=True)
def resume(caller: Caller) -> Run:
    """Continue the paused run, and return it; it has ended if no work was left. Raises `UserError` unless a run is
    paused."""
    context = caller.context
    resumed = service.resume(context, estimates.parts(context, StartOptions(skip_sync=True)))
    return _run(queries.run(context, resumed.id))  # it has ended if it had no work left


@operation(Scope.WRITE)
def stop(caller: Caller) -> Run:
    """End the active run. Paid results stay; songs without results become pending again. Raises `UserError` without an
    active run."""
    return _run(service.stop(caller.context))


status, run, runs = reads(queries.status), reads(queries.run), reads(queries.runs)
figures, sums = reads(queries.run_figures), reads(queries.run_sums)
show, song_by_id, songs = reads(queries.song), reads(queries.song_by_id), reads(queries.songs)


@operation(Scope.READ)
def batches(
    caller: Caller,
    *,
    status: BatchStatus | None = None,
    run_id: str = "",
    before: int | None = None,
    limit: int = 50,
) -> list[BatchView]:
    """Return batches, newest first, with the errors of failed ones. `before`: only batches older than the one with this
    id.

    Only administrators get models' answers (`reply`).
    """
    views = queries.batches(caller.context, status=status, run_id=run_id, before=before, limit=limit)
    return views if caller.is_admin else [replace(batch, reply=None) for batch in views]


@operation(Scope.WRITE, spends=True)
def retry_batch(caller: Caller, batch_id: int) -> BatchView:
    """Let a failed batch do its step again, in the active run or in a new one. Raises `UserError` for an unknown batch,
    or one that has not failed."""
    context = caller.context
    options = StartOptions(skip_sync=True, failed=True, limit=batch_size(context))
    return commands.retry(context, batch_id, estimates.parts(context, options))


promote_batch = acts(commands.promote, Scope.WRITE)
remove_batch = acts(commands.remove, Scope.WRITE)
search = acts(searching.for_words, Scope.READ, spends=True, places=SEARCHES)
searchable, similar = reads(searching.count_searchable), reads(searching.like_song)


def _run(view: RunView) -> Run:
    return view_of(Run, view)
