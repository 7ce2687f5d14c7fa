"""The screenshots flow, as one may use it: take frames in, search what happened, look, try again, forget."""

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
from pipeline.operations.documents import a_child
from pipeline.operations.operation import acts, operation, reads
from pipeline.storage.api_keys import Scope

_NUMBER = re.compile(r"[1-9][0-9]{0,14}")
AT_REST = (WorkStatus.SUCCEEDED, WorkStatus.FAILED_PERMANENT)


@dataclass(frozen=True)
class Taken(intake.Taken):
    """What became of a frame that was taken in."""

    def wait(self, timeout_s: float | None = None) -> WorkStatus | None:
        """Wait until the frame is analysed or given up; None if there is no such frame (any more).

        Warns (`NoWorkerWarning`) if no worker runs. Raises `TimeoutError` after `timeout_s` seconds.
        """
        if self.shot_id is None:
            return None
        found: dict[int, WorkStatus] = {}
        for found in follow([self.shot_id], timeout_s=timeout_s):  # noqa: B007  # the last look is the answer
            pass
        return found.get(self.shot_id)


@operation(Scope.WRITE, spends=True)
def ingest(
    caller: Caller,
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
    frame, original, captured = picture, "", at or datetime.now(UTC)
    if not isinstance(frame, bytes):
        frame = Path(frame)
        original = str(frame.parent.resolve() / frame.name)
        with suppress(OSError):  # it cannot be read: taking it in says why
            captured = at or datetime.fromtimestamp(frame.stat().st_mtime, UTC)
    known = Frame(source, captured, app, window_title, original)
    return view_of(Taken, service.ingest(caller.context, frame, known))


@operation(Scope.WRITE, spends=True)
def ingest_upload(
    caller: Caller, copy: Path, name: str, frame: Frame, *, wanted: Callable[[], bool] = lambda: True
) -> Taken:
    """Take in what a stranger sent: a private copy, at which only a child process looks. `name`: what errors call it.

    Raises what `ingest` raises, `Refused` (429, 503) if too many files are being looked at, or `Unwanted`.
    """
    with a_child(caller):
        taken = service.ingest(caller.context, copy, frame, wanted=lambda: wanted() and caller.goes_on(), name=name)
    return view_of(Taken, taken)


states = reads(queries.states_of)
leave_out, batch_now = acts(service.leave_out, Scope.WRITE), acts(service.batch_now, Scope.WRITE, spends=True)


def settled(shot_ids: Sequence[int]) -> bool:
    """Whether each of these frames is analysed, or was given up, or is gone."""
    return all(state in AT_REST for state in states(shot_ids).values())


def follow(
    shot_ids: int | Sequence[int], *, timeout_s: float | None = None, idle: Callable[[], object] = lambda: None
) -> Iterator[dict[int, WorkStatus]]:
    """How a frame or several stand, again and again, until each is analysed, or was given up, or is gone.

    Warns (`NoWorkerWarning`) if no worker runs. `idle` is called about once a second. Raises `TimeoutError`
    after `timeout_s` seconds.
    """
    context, ids = owner().context, [shot_ids] if isinstance(shot_ids, int) else shot_ids
    return watching.watch(
        lambda: queries.states_of(context, ids),
        lambda found: sum(state not in AT_REST for state in found.values()),
        lambda event: event.get("flow") == "screenshots",
        undone=("screenshot is not analysed", "screenshots are not analysed"),
        timeout_s=timeout_s,
        idle=idle,
    )


search = acts(searching.find, Scope.READ, spends=True)


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
    """What happened, by hour and thread; the latest `limit`. `derived`: knowledge, state, procedure and plan, too.

    `before`: only what was earlier than the node with this moment and id.
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
    """(the latest `limit` nodes of the `timeline`, the `before` of the page before them, or None)."""
    hours = timeline.by(caller, limit=limit + 1, **which)
    if sum(len(hour.nodes) for hour in hours) <= limit:
        return hours, None
    first = hours[0]  # without the earliest node, the one too many
    rest = [Hour(first.begins_at, first.thread_id, first.thread_title, first.nodes[1:])] if first.nodes[1:] else []
    some = [*rest, *hours[1:]]
    return some, min((node.event_time, node.id) for hour in some for node in hour.nodes)


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
    """A frame as JPEG for a screen, or for a list. Raises `UserError` for a frame without a picture."""
    return renditions.make(caller.context, shot_id, Kind.SMALL if small else Kind.LARGE)


@operation(Scope.READ)
def text_lines(caller: Caller, shot_id: int, words: str = "") -> list[TextLine]:
    """The lines of text on a frame with their places, and where these words stand in them.

    What was not recognised on this machine before is recognised now, in a child process: that takes some seconds.
    """
    return renditions.lines_in(renditions.make(caller.context, shot_id, Kind.TEXT), words)


set_active, forget = acts(service.set_active, Scope.WRITE), acts(service.forget, Scope.WRITE)


@operation(Scope.ADMIN)
def exclude(caller: Caller, *, apps: Sequence[str] | None = None, titles: Sequence[str] | None = None) -> Exclusions:
    """From now on store no frames of these programs and window titles, beside those of the settings; None: as before.

    Patterns such as `*KeePass*`, in any case. What was stored before stays.
    """
    return service.exclude(caller.context, apps=apps, titles=titles, by=caller.key_name)


@operation(Scope.ADMIN)
def exclude_also(caller: Caller, apps: Sequence[str] = (), titles: Sequence[str] = ()) -> Exclusions:
    """Exclude these programs and window titles, too."""
    was = service.exclusions(caller.context)
    return exclude.by(
        caller, apps=[*was.apps, *apps] if apps else None, titles=[*was.titles, *titles] if titles else None
    )


@operation(Scope.ADMIN)
def include_again(
    caller: Caller, apps: Sequence[str] = (), titles: Sequence[str] = (), *, strict: bool = True
) -> Exclusions:
    """Store frames of these programs and titles again. `strict` refuses names that are not excluded."""
    was = service.exclusions(caller.context)
    left = (_without(was.apps, apps, strict=strict), _without(was.titles, titles, strict=strict))
    return exclude.by(caller, apps=left[0], titles=left[1])


def _without(there: Sequence[str], gone: Sequence[str], *, strict: bool) -> list[str] | None:
    if not gone:
        return None
    keys, out = {one.casefold() for one in there}, {one.strip().casefold(): one for one in gone}
    if strict and (strange := [one for key, one in out.items() if key not in keys]):
        raise UserError(f"not excluded: {', '.join(strange)}; see `penstock screenshots exclusions`", code="not_found")
    return [one for one in there if one.casefold() not in out]


replay = acts(service.replay, Scope.WRITE, spends=True)


@dataclass(frozen=True)
class NotReplayed:
    """A dead letter that stayed as it was, and why."""

    __pydantic_config__ = VIEW
    id: str
    reason: str


@dataclass(frozen=True)
class Replayed:
    """What came of it."""

    __pydantic_config__ = VIEW
    matched: int
    done: int
    skipped: list[NotReplayed]


@operation(Scope.WRITE, spends=True)
def replay_letters(caller: Caller, letters: Iterable[str] | None = None, kind: str = "") -> Replayed:
    """Try these dead letters again, such as `batch:4`, and skip what is none; or all, or all of a kind."""
    if letters is None:
        done = sum(len(replay.by(caller, one)) for one in ([kind] if kind else LetterKind))
        return Replayed(done, done, [])
    wanted: dict[str, list[int]] = {one: [] for one in LetterKind}
    named = list(dict.fromkeys(letters))
    for letter in named:
        of, _, number = letter.partition(":")
        if of in wanted and _NUMBER.fullmatch(number):
            wanted[of].append(int(number))
    again = {f"{of}:{one}" for of, ids in wanted.items() if ids for one in replay.by(caller, of, ids, strict=False)}
    skipped = [NotReplayed(letter, "not a dead letter") for letter in named if letter not in again]
    return Replayed(len(named), len(again), skipped)
