"""What keeps screenshots going: what was left out, batches, what was given up, sources, exclusions, deleting."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import groupby
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from fastapi import Form as Field
from fastapi.responses import HTMLResponse
from pydantic import StringConstraints
from starlette.responses import Response

from pipeline.flows.screenshots.states import LetterKind, Reason, WorkStatus
from pipeline.flows.screenshots.views import RejectionView
from pipeline.interfaces.console.answers import done
from pipeline.interfaces.console.screens.screenshots import ROOT, following, page
from pipeline.interfaces.console.words import plural
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, admin, reader, spender, writer
from pipeline.interfaces.http.fields import CLEAN, Line, RowId
from pipeline.interfaces.http.moments import At, check_range, is_fit
from pipeline.interfaces.http.pages import Cursor
from pipeline.interfaces.http.screenshots import LetterId, Pattern, take
from pipeline.interfaces.http.uploads import Form, uploaded
from pipeline.operations import screenshots
from pipeline.operations.refusal import Refused

router = APIRouter(prefix=ROOT, include_in_schema=False, dependencies=reader)
LINES, BATCHES, LETTERS = 100, 50, 50
"""On a page."""
MOST_FILES = 100
TimeField = Annotated[str, StringConstraints(max_length=40), CLEAN]
"""What a browser's field for a date and a time sends, or nothing."""
_SPANS = {"5m": timedelta(minutes=5), "1h": timedelta(hours=1), "24h": timedelta(days=1)}


@dataclass(frozen=True)
class Alike:
    """Frames that were left out one after another, for the same reason, beside the frame that they looked like."""

    reason: str
    source: str
    nearest_id: int | None
    frames: list[RejectionView]


@router.get("/rejected")
def list_rejected(
    request: Request, caller: ByCaller, source: Line = "", reason: Reason | Literal[""] = "", cursor: Cursor = None
) -> HTMLResponse:
    """Frames that were not accepted, beside those that they look like."""
    asked = {"source": source, "reason": reason}
    (before,) = pages.decode(cursor, int) or (None,)
    found = screenshots.rejections.by(caller, source=source, reason=reason, limit=LINES + 1, before=before)
    some = found[:LINES]
    groups = [
        Alike(*key, list(frames))
        for key, frames in groupby(some, lambda one: (one.reason, one.source_key, one.nearest_id))
    ]
    kept = screenshots.screenshots_by_id.by(caller, [one.nearest_id for one in groups if one.nearest_id])
    more = pages.encode(some[-1].id) if len(found) > LINES else None
    return page(
        request,
        caller,
        "rejected.html",
        asked=asked,
        groups=groups,
        kept=kept,
        reasons=list(Reason),
        sources=screenshots.sources.by(caller),
        next_url=following(f"{ROOT}/rejected", asked, more),
        first_url=following(f"{ROOT}/rejected", asked, "") if cursor else "",
    )


@router.get("/batches")
def list_batches(
    request: Request, caller: ByCaller, status: WorkStatus | Literal[""] = "", cursor: Cursor = None
) -> HTMLResponse:
    """Frames that are analysed together, the newest first."""
    asked = {"status": status}
    (before,) = pages.decode(cursor, int) or (None,)
    found = screenshots.batches.by(caller, status=status or None, limit=BATCHES + 1, before=before)
    more = pages.encode(found[BATCHES - 1].id) if len(found) > BATCHES else None
    return page(
        request,
        caller,
        "batches.html",
        asked=asked,
        batches=found[:BATCHES],
        statuses=list(WorkStatus),
        next_url=following(f"{ROOT}/batches", asked, more),
        first_url=following(f"{ROOT}/batches", asked, "") if cursor else "",
    )


@router.get("/batches/{batch_id}")
def show_batch(request: Request, caller: ByCaller, batch_id: RowId) -> HTMLResponse:
    """A batch: how it stands and why, its frames."""
    batch = screenshots.batch.by(caller, batch_id)
    return page(request, caller, "batch.html", batch=batch, found=screenshots.screenshots_of.by(caller, batch_id))


@router.get("/dead-letters")
def list_dead_letters(
    request: Request, caller: ByCaller, kind: LetterKind | Literal[""] = "", cursor: Cursor = None
) -> HTMLResponse:
    """Work that was given up, with the reasons."""
    asked = {"kind": kind}
    found = screenshots.dead_letters.by(caller, LETTERS + 1, kind=kind, after=pages.decode(cursor, At, LetterKind, int))
    last = found[LETTERS - 1] if len(found) > LETTERS else None
    return page(
        request,
        caller,
        "letters.html",
        asked=asked,
        found=found[:LETTERS],
        kinds=list(LetterKind),
        next_url=following(f"{ROOT}/dead-letters", asked, pages.encode(last.at, last.kind, last.id) if last else None),
        first_url=following(f"{ROOT}/dead-letters", asked, "") if cursor else "",
    )


@router.post("/dead-letters/replay", dependencies=[*writer, *spender])
def replay(
    request: Request,
    caller: ByCaller,
    letter: Annotated[LetterId | Literal[""], Field()] = "",
    kind: Annotated[LetterKind | Literal["", "all"], Field()] = "",
) -> Response:
    """Try one again, or all of a kind, or all."""
    if not letter and not kind:
        raise Refused("say what to try again", code="invalid")
    if letter:
        count = screenshots.replay_letters.by(caller, [letter]).done
        said = "It is tried again." if count else "It was tried again already."
    else:
        count = screenshots.replay_letters.by(caller, kind="" if kind == "all" else kind).done
        said = f"{plural(count, 'dead letter')} will be tried again." if count else "There are no dead letters."
    return done(request, said)


@router.get("/sources")
def list_sources(request: Request, caller: ByCaller) -> HTMLResponse:
    """Where frames come from, and whose are never stored."""
    return page(
        request,
        caller,
        "sources.html",
        sources=screenshots.sources.by(caller),
        exclusions=screenshots.exclusions.by(caller),
        apps=screenshots.apps.by(caller),
        capture=screenshots.status.by(caller, makers=False).capture,
        settings=caller.context.settings.screenshots,
    )


@router.post("/sources/switch", dependencies=writer)
def switch_source(
    request: Request, caller: ByCaller, source: Annotated[Line, Field()], active: Annotated[bool, Field()]
) -> Response:
    """Take frames of a source from now on, or refuse them."""
    screenshots.set_active.by(caller, source, active)
    return done(request, f"Frames of {source} are {'taken' if active else 'refused'} from now on.")


@router.post("/exclusions", dependencies=admin)
def exclude(
    request: Request,
    caller: ByCaller,
    app: Annotated[Pattern | Literal[""], Field()] = "",
    title: Annotated[Pattern | Literal[""], Field()] = "",
) -> Response:
    """Never store frames of a program or a window's title from now on."""
    if not app and not title:
        raise Refused("name a program or a window's title", code="invalid")
    # A program's own name may hold signs that have a meaning in patterns: `?` stands for any of them.
    apps, titles = ([one.replace(";", "?")] if one else [] for one in (app, title))
    screenshots.exclude_also.by(caller, apps, titles)
    return done(request, f"Frames of {' and '.join(filter(None, (app, title)))} are not stored from now on.")


@router.post("/exclusions/remove", dependencies=admin)
def include(
    request: Request,
    caller: ByCaller,
    app: Annotated[Line, Field()] = "",
    title: Annotated[Line, Field()] = "",
) -> Response:
    """Take an exclusion back."""
    screenshots.include_again.by(caller, list(filter(None, [app])), list(filter(None, [title])), strict=False)
    return done(request, f"Frames of {app or title} are stored again.")


@router.get("/delete")
def ask_to_delete(
    request: Request,
    caller: ByCaller,
    since: TimeField = "",
    until: TimeField = "",
    last: Literal["", "5m", "1h", "24h"] = "",
) -> HTMLResponse:
    """What a range of time holds, before it is deleted."""
    zone = screenshots.time_zone.by(caller)
    if last:
        # Also what arrives while somebody reads the question.
        end = caller.context.db.now()
        begin = end - _SPANS[last]
    elif since and until:
        begin, end = moment(since, zone), moment(until, zone)
    else:
        return page(request, caller, "delete.html", extent=None, begin=None, end=None, sample=[])
    check_range(begin, end)
    sample = screenshots.screenshots.by(caller, since=begin, until=end, limit=8)
    return page(
        request,
        caller,
        "delete.html",
        extent=screenshots.extent.by(caller, begin, end),
        begin=begin,
        end=end,
        sample=sample,
    )


@router.post("/delete", dependencies=writer)
def delete(
    request: Request, caller: ByCaller, since: Annotated[At, Field()], until: Annotated[At, Field()]
) -> Response:
    """Delete a range of time with all that was derived from it."""
    check_range(since, until)
    gone = screenshots.forget.by(caller, since, until)
    again = f"; {plural(gone.restored, 'node')} say again what they said before" if gone.restored else ""
    said = f"{plural(gone.screenshots, 'frame')} and {plural(gone.nodes, 'node')} were deleted{again}."
    return done(request, said, to=f"{ROOT}/delete")


def moment(text: str, zone: tzinfo) -> datetime:
    """What a browser's field for a date and a time gives, in the zone that people see. Raises `Refused`."""
    try:
        found = datetime.fromisoformat(text)
        found = (found if found.tzinfo else found.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        found = None
    if found is None or not is_fit(found):
        raise Refused("write times like 2026-11-22T10:00", code="invalid")
    return found


@router.post("/add", dependencies=[*writer, *spender])
def add(
    request: Request,
    caller: ByCaller,
    form: Annotated[Form, Depends(uploaded(MOST_FILES))],
) -> Response:
    """Take pictures in that a browser sends."""
    taken = [take(caller, form, file) for file in form.files]
    if not taken:
        raise Refused("choose pictures first", code="invalid")
    by: dict[str, int] = {}
    for one in taken:
        word = "taken in" if one.accepted else {"known": "known already"}.get(one.reason, f"left out: {one.reason}")
        by[word] = by.get(word, 0) + 1
    said = ", ".join(f"{plural(count, 'picture')} {word}" for word, count in by.items())
    return done(request, f"{said}.", to=f"{ROOT}/frames" if any(one.accepted for one in taken) else f"{ROOT}/sources")
