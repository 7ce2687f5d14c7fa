"""Python's way in to the screenshots flow.

>>> from tasks import screenshots
>>> screenshots.ingest("desk.png", source="screen:0", app="Firefox", window_title="Invoices")
>>> [hit.node.title for hit in screenshots.search("invoice from March").hits]

Every function returns plain typed objects. All raise `UserError` with a sentence for people.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from os import PathLike
from pathlib import Path

from pipeline.engine.errors import NoWorkerWarning, UserError
from pipeline.engine.logs import configure_as_library
from pipeline.engine.views import view_of
from pipeline.flows.screenshots import plan, queries, service
from pipeline.flows.screenshots.deletion import Forgotten
from pipeline.flows.screenshots.frames import intake, renditions
from pipeline.flows.screenshots.frames.files import Kind
from pipeline.flows.screenshots.frames.intake import Frame
from pipeline.flows.screenshots.search import find
from pipeline.flows.screenshots.states import DERIVED, NodeKind, WorkStatus
from pipeline.flows.screenshots.status import status as current_status
from pipeline.flows.screenshots.views import (
    BatchView,
    DeadLetter,
    Exclusions,
    Extent,
    Found,
    Hour,
    NodeDetail,
    NodeView,
    RejectionView,
    ScreenshotView,
    SourceView,
    Status,
    TextLine,
)
from pipeline.operations import watch as watching
from pipeline.settings import quota
from pipeline.storage.context import Context
from tasks.context import get_context
from tasks.screenshots.canvas import TASKS, after_intake

__all__ = [
    "BatchView",
    "DeadLetter",
    "Exclusions",
    "Extent",
    "Forgotten",
    "Found",
    "Frame",
    "Hour",
    "NoWorkerWarning",
    "NodeDetail",
    "NodeView",
    "RejectionView",
    "ScreenshotView",
    "SourceView",
    "Status",
    "Taken",
    "TextLine",
    "UserError",
    "WorkStatus",
    "batch",
    "batch_now",
    "batches",
    "dead_letters",
    "exclude",
    "exclusions",
    "extent",
    "follow",
    "forget",
    "ingest",
    "ingest_upload",
    "leave_out",
    "nodes_of",
    "picture",
    "rejections",
    "replay",
    "screenshot",
    "screenshots",
    "screenshots_of",
    "search",
    "set_active",
    "settled",
    "show",
    "sources",
    "states",
    "status",
    "text_lines",
    "time_zone",
    "timeline",
]

configure_as_library()

_AT_REST = (WorkStatus.SUCCEEDED, WorkStatus.FAILED_PERMANENT)


@dataclass(frozen=True)
class Taken(intake.Taken):
    """What became of a frame that was taken in."""

    def wait(self, timeout_s: float | None = None) -> WorkStatus | None:
        """Wait until the frame is analysed or given up; None if there is no such frame (any more).

        Warns (`NoWorkerWarning`) if there is nobody to work. Raises `TimeoutError` after `timeout_s` seconds.
        """
        if self.shot_id is None:
            return None
        found: dict[int, WorkStatus] = {}
        for found in follow([self.shot_id], timeout_s=timeout_s):  # noqa: B007  # the last look is the answer
            pass
        return found.get(self.shot_id)


def ingest(
    picture: str | PathLike[str] | bytes,
    *,
    source: str,
    app: str = "",
    window_title: str = "",
    at: datetime | None = None,
) -> Taken:
    """Take a frame in: a file, whose content is copied, or its bytes. `at`: when it was captured.

    Without `at` it is the file's time, or now for bytes; so a file that is added twice is known the second time.
    """
    frame = picture if isinstance(picture, bytes) else Path(picture)
    original = "" if isinstance(frame, bytes) else str(frame.parent.resolve() / frame.name)
    known = Frame(source, at or _captured_at(frame), app, window_title, original)
    return _taken(service.ingest(get_context(), frame, known), source)


def ingest_upload(copy: Path, name: str, frame: Frame, *, wanted: Callable[[], bool] = lambda: True) -> Taken:
    """Take in what a stranger sent: a private copy, at which only a child process looks. `name`: what errors call it.

    Raises what `ingest` raises, or `Unwanted`.
    """
    return _taken(service.ingest(get_context(), copy, frame, wanted=wanted, name=name), frame.source)


def _taken(taken: intake.Taken, source: str) -> Taken:
    after_intake(taken, source)
    return view_of(Taken, taken)


def batch_now(source: str) -> None:
    """Have a source's frames looked at without waiting for more of them, when nothing is to follow soon."""
    TASKS.launch(plan.buffer_of(source, flush=True))


def leave_out(frame: Frame) -> None:
    """Note in the ledger that a frame was not even captured, since a person excluded what it would have shown."""
    service.leave_out(get_context(), frame)


def _captured_at(picture: Path | bytes) -> datetime:
    try:
        return datetime.now(UTC) if isinstance(picture, bytes) else datetime.fromtimestamp(picture.stat().st_mtime, UTC)
    except OSError:
        return datetime.now(UTC)  # it cannot be read: taking it in says why


def states(shot_ids: Sequence[int]) -> dict[int, WorkStatus]:
    """The state of each of these frames; a deleted one is left out."""
    return queries.states_of(get_context(), shot_ids)


def settled(shot_ids: Sequence[int]) -> bool:
    """Whether each of these frames is analysed, or was given up, or is gone."""
    return all(state in _AT_REST for state in states(shot_ids).values())


def follow(
    shot_ids: int | Sequence[int], *, timeout_s: float | None = None, idle: Callable[[], object] = lambda: None
) -> Iterator[dict[int, WorkStatus]]:
    """How a frame or several stand, again and again, until each is analysed, or was given up, or is gone.

    Warns (`NoWorkerWarning`) if there is nobody to work. `idle` is called about once a second. Raises `TimeoutError`
    after `timeout_s` seconds.
    """
    ids = [shot_ids] if isinstance(shot_ids, int) else shot_ids
    return watching.watch(
        lambda: queries.states_of(get_context(), ids),
        lambda found: sum(state not in _AT_REST for state in found.values()),
        lambda event: event.get("flow") == "screenshots",
        undone=("screenshot is not analysed", "screenshots are not analysed"),
        timeout_s=timeout_s,
        idle=idle,
    )


def search(
    words: str, since: datetime | None = None, app: str = "", limit: int = 10, *, by_meaning: bool = True
) -> Found:
    """Nodes for these words, best first, by text and by vectors.

    Asks the provider of embeddings, if there is one; `by_meaning=False` does not.
    """
    return find(get_context(), words, since=since, app=app, limit=limit, by_meaning=by_meaning)


def timeline(
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    thread: str = "",
    derived: bool = False,
    limit: int = 500,
    before: tuple[datetime, int] | None = None,
) -> list[Hour]:
    """What happened, by hour and thread; the latest `limit`. `derived`: knowledge, state, procedure and plan, too.

    `before`: only what was earlier than the node with this moment and id.
    """
    kinds = (NodeKind.EVENT, *DERIVED) if derived else (NodeKind.EVENT,)
    return queries.timeline(
        get_context(),
        since=since,
        until=until,
        thread=thread,
        kinds=kinds,
        zone=time_zone(),
        limit=limit,
        before=before,
    )


def show(node_id: int) -> NodeDetail:
    """A node with what it rests on, or the one that it went into."""
    return queries.show(get_context(), node_id)


def screenshot(shot_id: int) -> ScreenshotView:
    """A frame."""
    return queries.screenshot(get_context(), shot_id)


def screenshots(
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    source: str = "",
    app: str = "",
    status: WorkStatus | None = None,
    limit: int = 50,
    before: tuple[datetime, int] | None = None,
) -> list[ScreenshotView]:
    """Frames, the latest first. `before`: only those earlier than the frame with this moment and id."""
    return queries.screenshots(
        get_context(), since=since, until=until, source=source, app=app, status=status, limit=limit, before=before
    )


def nodes_of(shot_id: int) -> list[NodeView]:
    """The nodes that rest on a frame, in the order of time."""
    return queries.nodes_of(get_context(), shot_id)


def picture(shot_id: int, *, small: bool = False) -> bytes:
    """A frame as JPEG for a screen, or for a list. Raises `UserError` if there is no picture of it."""
    return renditions.make(get_context(), shot_id, Kind.SMALL if small else Kind.LARGE)


def text_lines(shot_id: int, words: str = "") -> list[TextLine]:
    """The lines of text on a frame with their places, and where these words stand in them.

    What was not recognised on this machine before is recognised now, in a child process: that takes some seconds.
    """
    return renditions.lines_in(renditions.make(get_context(), shot_id, Kind.TEXT), words)


def screenshots_of(batch_id: int) -> list[ScreenshotView]:
    """A batch's frames that are still there, in its order."""
    return queries.screenshots_of(get_context(), batch_id)


def status(*, makers: bool = True) -> Status:
    """How the flow stands. `makers`: also who made the nodes, which takes a look at each of them."""
    return current_status(get_context(), makers=makers)


def sources() -> list[SourceView]:
    """Screens and windows that frames came from."""
    return queries.sources(get_context())


def set_active(key: str, active: bool) -> None:
    """From now on, frames of this source are taken, or refused."""
    service.set_active(get_context(), key, active)


def batches(*, status: WorkStatus | None = None, limit: int = 50) -> list[BatchView]:
    """Batches, the newest first."""
    return queries.batches(get_context(), status=status, limit=limit)


def batch(batch_id: int) -> BatchView:
    """A batch."""
    return queries.batch(get_context(), batch_id)


def exclusions() -> Exclusions:
    """Whose frames are never stored."""
    return service.exclusions(get_context())


def exclude(*, apps: Sequence[str] | None = None, titles: Sequence[str] | None = None) -> Exclusions:
    """From now on store no frames of these programs and window titles, beside those of the settings; None: as before.

    Patterns such as `*KeePass*`, in any case. What was stored before stays.
    """
    return service.exclude(get_context(), apps=apps, titles=titles)


def rejections(*, source: str = "", reason: str = "", limit: int = 50) -> list[RejectionView]:
    """Frames that were not accepted, the newest first; for this reason, such as `duplicate`."""
    return queries.rejections(get_context(), source=source, reason=reason, limit=limit)


def dead_letters(limit: int = 100) -> list[DeadLetter]:
    """Work that was given up, the latest first, with the reasons."""
    return queries.dead_letters(get_context(), limit)


def replay(kind: str, ids: Sequence[int] | None = None, *, strict: bool = True) -> list[int]:
    """Try dead letters again, these or all of the kind (`batch`, `merge`, `vector`); the ids of those that were.

    Unless `strict`, ids that are none are left out.
    """
    context = get_context()
    done = service.replay(context, kind, ids, strict=strict)
    _freed(context, done if kind == "batch" else ())
    return done


def extent(since: datetime, until: datetime) -> Extent:
    """What `forget` would delete."""
    return queries.extent(get_context(), since, until)


def forget(since: datetime, until: datetime) -> Forgotten:
    """Delete frames captured in [since, until) and all that was derived from them."""
    context = get_context()
    done = service.forget(context, since, until)
    # What was merged with something that is gone is merged anew, and frames of broken-up batches are batched again.
    _freed(context)
    return done


def time_zone() -> tzinfo:
    """The zone that people are told times in. Raises `UserError` if there is none of the configured name."""
    name = get_context().settings.screenshots.time_zone
    try:
        return quota.zone(name)
    except ValueError as error:
        raise UserError(f"PENSTOCK_SCREENSHOTS__TIME_ZONE: {error}", code="bad_zone") from error


def _freed(context: Context, batch_ids: Sequence[int] = ()) -> None:
    """After the commit: batches, merges, vectors and the buffer may all have something to do again."""
    TASKS.launch(*plan.ready_buffers(context), *plan.Scope.all(), *map(plan.scope_of, batch_ids))
    TASKS.wake_in(TASKS.flow.next_wait_s(context) if context.online else None)
