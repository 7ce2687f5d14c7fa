"""Operations of the screenshots flow: ingest frames, search and show events, replay dead letters, delete."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any

from pipeline.engine.errors import UserError
from pipeline.engine.views import view_of
from pipeline.engine.wire import VIEW
from pipeline.flows.screenshots import queries, service
from pipeline.flows.screenshots import search as searching
from pipeline.flows.screenshots import status as standing
from pipeline.flows.screenshots.frames import intake, renditions
from pipeline.flows.screenshots.frames.files import Kind
from pipeline.flows.screenshots.frames.intake import Frame
from pipeline.flows.screenshots.states import DERIVED, LetterKind, NodeKind, WorkStatus
from pipeline.flows.screenshots.views import Exclusions, Hour, TextLine
from pipeline.operations import watch as watching
from pipeline.operations.caller import Caller, owner
from pipeline.operations.documents import inspection
from pipeline.operations.operation import acts, operation, reads
from pipeline.operations.quotas import SEARCHES
from pipeline.storage.api_keys import Scope

_NUMBER = re.compile(r"[1-9][0-9]{0,14}")
AT_REST = (WorkStatus.SUCCEEDED, WorkStatus.FAILED_PERMANENT)


@dataclass(frozen=True)
class Intake(intake.Intake):
    """The result of ingesting a frame."""

    def wait(self, timeout_s: float | None = None) -> WorkStatus | None:
        """Wait until the frame is analysed or given up, and return its state; None for a frame without an id, or a
        deleted one.

        Warns (`NoWorkerWarning`) if no worker runs. Raises `TimeoutError` after `timeout_s` seconds.
        """
        if self.shot_id is None:
            return None
        latest: dict[int, WorkStatus] = {}
        for latest in follow([self.shot_id], timeout_s=timeout_s):  # noqa: B007  # the last state is the answer
            pass
        return latest.get(self.shot_id)


@operation(Scope.WRITE, spends=True)
def ingest(
    caller: Caller,
    picture: str | PathLike[str] | bytes,
    *,
    source: str,
    app: str = "",
    window_title: str = "",
    at: datetime | None = None,
) -> Intake:
    """Ingest a frame: a copy of a file, or bytes. `at`: the time of its capture. The result says why a frame is not
    stored, such as `duplicate` or `excluded`.

    Without `at` it is the file's time, or now for bytes. So a file that is added twice is a duplicate.
    """
    frame, original, captured = picture, "", at or datetime.now(UTC)
    if not isinstance(frame, bytes):
        frame = Path(frame)
        original = str(frame.parent.resolve() / frame.name)
        with suppress(OSError):  # `ingest` reports an unreadable file
            captured = at or datetime.fromtimestamp(frame.stat().st_mtime, UTC)
    known = Frame(source, captured, app, window_title, original)
    return view_of(Intake, service.ingest(caller.context, frame, known))


@operation(Scope.WRITE, spends=True)
def ingest_upload(
    caller: Caller, copy: Path, name: str, frame: Frame, *, wanted: Callable[[], bool] = lambda: True
) -> Intake:
    """Ingest an uploaded file, a private copy, after a child process has inspected it. `name`: its name in errors.

    Raises `UserError`, `UnitError`, `Refused` (429, 503) during too many other inspections, or `Unwanted`.
    """
    with inspection(caller):
        intake = service.ingest(caller.context, copy, frame, wanted=lambda: wanted() and caller.goes_on(), name=name)
    return view_of(Intake, intake)


states = reads(queries.states_of)
leave_out, batch_now = acts(service.leave_out, Scope.WRITE), acts(service.batch_now, Scope.WRITE, spends=True)


def settled(shot_ids: Sequence[int]) -> bool:
    """Whether each of these frames was analysed, given up or deleted. An unknown id counts as deleted."""
    return all(state in AT_REST for state in states(shot_ids).values())


def follow(
    shot_ids: int | Sequence[int], *, timeout_s: float | None = None, idle: Callable[[], object] = lambda: None
) -> Iterator[dict[int, WorkStatus]]:
    """Yield the states of a frame or several by id, changed or not, until each was analysed, given up or deleted.
    Unknown ids are left out.

    Warns (`NoWorkerWarning`) if no worker runs. Calls `idle` about once a second. Raises `TimeoutError` after
    `timeout_s` seconds.
    """
    context, ids = owner().context, [shot_ids] if isinstance(shot_ids, int) else shot_ids
    return watching.watch(
        lambda: queries.states_of(context, ids),
        lambda states: sum(state not in AT_REST for state in states.values()),
        lambda event: event.get("flow") == "screenshots",
        undone=("screenshot is not analysed", "screenshots are not analysed"),
        timeout_s=timeout_s,
        idle=idle,
    )


search = acts(searching.find, Scope.READ, spends=True, places=SEARCHES)


@operation(Scope.READ)
def timeline(
    caller: Caller,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    thread: str = "",
    derived: bool = False,
    limit: int = 500,
    before: queries.Key | None = None,
) -> list[Hour]:
    """Return the latest `limit` nodes, oldest first, by hour and thread: events; with `derived` also knowledge, states
    and the like.

    `before`: only nodes earlier than the one with this time and id.
    """
    return queries.timeline(
        caller.context,
        since=since,
        until=until,
        thread=thread,
        kinds=(NodeKind.EVENT, *DERIVED) if derived else (NodeKind.EVENT,),
        zone=queries.time_zone(caller.context),
        limit=limit,
        before=before,
    )


@operation(Scope.READ)
def timeline_page(caller: Caller, /, limit: int, **which: Any) -> tuple[list[Hour], queries.Key | None]:
    """Return the latest `limit` nodes of the `timeline`, and the `before` of the previous page, or None."""
    hours = timeline.by(caller, limit=limit + 1, **which)
    if sum(len(hour.nodes) for hour in hours) <= limit:
        return hours, None
    first = hours[0]  # without the earliest node, which is beyond the limit
    rest = [Hour(first.begins_at, first.thread_id, first.thread_title, first.nodes[1:])] if first.nodes[1:] else []
    hours_shown = [*rest, *hours[1:]]
    return hours_shown, min((node.event_time, node.id) for hour in hours_shown for node in hour.nodes)


show, nodes_of, nodes_by_id = reads(queries.show), reads(queries.nodes_of), reads(queries.nodes_by_id)
screenshot, screenshots = reads(queries.screenshot), reads(queries.screenshots)
screenshots_of, screenshots_by_id = reads(queries.screenshots_of), reads(queries.screenshots_by_id)
frames_of, neighbours, apps = reads(queries.frames_of), reads(queries.neighbours), reads(queries.apps)
batch, batches, rejections = reads(queries.batch), reads(queries.batches), reads(queries.rejections)
dead_letters, dead_letter_counts = reads(queries.dead_letters), reads(queries.dead_letter_counts)
sources, extent, time_zone = reads(queries.sources), reads(queries.extent), reads(queries.time_zone)
status, exclusions = reads(standing.status), reads(service.exclusions)
find_rendition, known_places = reads(renditions.find), reads(renditions.known_places)
rendition = reads(renditions.make)


@operation(Scope.READ)
def picture(caller: Caller, shot_id: int, *, small: bool = False) -> bytes:
    """Return a frame as JPEG, in the size of a screen or (`small`) of a list. Raises `UserError` for a frame without a
    picture."""
    return renditions.make(caller.context, shot_id, Kind.SMALL if small else Kind.LARGE)


@operation(Scope.READ)
def text_lines(caller: Caller, shot_id: int, words: str = "") -> list[TextLine]:
    """Return the lines of text on a frame with their places, and the places of these words in them.

    If this machine has not recognised the frame's text before, a child process does so now, in some seconds.
    """
    return renditions.lines_in(renditions.make(caller.context, shot_id, Kind.TEXT), words)


set_active, forget = acts(service.set_active, Scope.WRITE), acts(service.forget, Scope.WRITE)


@operation(Scope.ADMIN)
def exclude(caller: Caller, *, apps: Sequence[str] | None = None, titles: Sequence[str] | None = None) -> Exclusions:
    """Replace the live patterns of programs and window titles whose frames Penstock does not store; None: unchanged.
    The patterns of the settings stay.

    A pattern such as `*KeePass*` matches in any case. Frames stored before stay. Raises `UserError`.
    """
    return service.exclude(caller.context, apps=apps, titles=titles, by=caller.key_name)


@operation(Scope.ADMIN)
def exclude_also(caller: Caller, apps: Sequence[str] = (), titles: Sequence[str] = ()) -> Exclusions:
    """Add patterns to the live exclusions of programs and window titles."""
    was = service.exclusions(caller.context)
    return exclude.by(
        caller, apps=[*was.apps, *apps] if apps else None, titles=[*was.titles, *titles] if titles else None
    )


@operation(Scope.ADMIN)
def include_again(
    caller: Caller, apps: Sequence[str] = (), titles: Sequence[str] = (), *, strict: bool = True
) -> Exclusions:
    """Remove patterns from the live exclusions, so that Penstock stores such frames again. Raises `UserError` for
    patterns that are not there, unless `strict` is off."""
    was = service.exclusions(caller.context)
    remaining = (_without(was.apps, apps, strict=strict), _without(was.titles, titles, strict=strict))
    return exclude.by(caller, apps=remaining[0], titles=remaining[1])


def _without(current: Sequence[str], removed: Sequence[str], *, strict: bool) -> list[str] | None:
    if not removed:
        return None
    keys, out = {name.casefold() for name in current}, {name.strip().casefold(): name for name in removed}
    if strict and (unknown := [name for key, name in out.items() if key not in keys]):
        raise UserError(f"not excluded: {', '.join(unknown)}; see `penstock screenshots exclusions`", code="not_found")
    return [name for name in current if name.casefold() not in out]


replay = acts(service.replay, Scope.WRITE, spends=True)


@dataclass(frozen=True)
class NotReplayed:
    """A dead letter that a replay skipped, and why."""

    __pydantic_config__ = VIEW
    id: str
    reason: str


@dataclass(frozen=True)
class Replayed:
    """The result of a replay."""

    __pydantic_config__ = VIEW
    matched: int
    done: int
    skipped: list[NotReplayed]


@operation(Scope.WRITE, spends=True)
def replay_letters(caller: Caller, letters: Iterable[str] | None = None, kind: str = "") -> Replayed:
    """Replay these dead letters, such as `batch:4`; the result lists names that are not dead letters. None: replay all,
    or all of a `kind`, which counts only then."""
    if letters is None:
        done = sum(len(replay.by(caller, each)) for each in ([kind] if kind else LetterKind))
        return Replayed(done, done, [])
    wanted: dict[str, list[int]] = {each: [] for each in LetterKind}
    named = list(dict.fromkeys(letters))
    for letter in named:
        of, _, number = letter.partition(":")
        if of in wanted and _NUMBER.fullmatch(number):
            wanted[of].append(int(number))
    replayed = {f"{of}:{id_}" for of, ids in wanted.items() if ids for id_ in replay.by(caller, of, ids, strict=False)}
    skipped = [NotReplayed(letter, "not a dead letter") for letter in named if letter not in replayed]
    return Replayed(len(named), len(replayed), skipped)
