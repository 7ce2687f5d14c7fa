"""The operation of screenshots: left-out frames, batches, dead letters, sources, exclusions, deletion."""

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
"""Rows on a page."""
MOST_FILES = 100
TimeField = Annotated[str, StringConstraints(max_length=40), CLEAN]
"""The text of a browser's date and time field, possibly empty."""
_SPANS = {"5m": timedelta(minutes=5), "1h": timedelta(hours=1), "24h": timedelta(days=1)}


@dataclass(frozen=True)
class Alike:
    """Consecutive frames that were left out for the same reason, with the frame that they resemble."""

    reason: str
    source: str
    nearest_id: int | None
    frames: list[RejectionView]


@router.get("/rejected")
def list_rejected(
    request: Request, caller: ByCaller, source: Line = "", reason: Reason | Literal[""] = "", cursor: Cursor = None
) -> HTMLResponse:
    """Show left-out frames beside the frames that they resemble."""
    filters = {"source": source, "reason": reason}
    (before,) = pages.decode(cursor, int) or (None,)
    rows = screenshots.rejections.by(caller, source=source, reason=reason, limit=LINES + 1, before=before)
    shown = rows[:LINES]
    groups = [
        Alike(*key, list(frames))
        for key, frames in groupby(
            shown, lambda rejection: (rejection.reason, rejection.source_key, rejection.nearest_id)
        )
    ]
    nearest = screenshots.screenshots_by_id.by(
        caller, [rejection.nearest_id for rejection in groups if rejection.nearest_id]
    )
    more = pages.encode(shown[-1].id) if len(rows) > LINES else None
    return page(
        request,
        caller,
        "rejected.html",
        filters=filters,
        groups=groups,
        nearest=nearest,
        reasons=list(Reason),
        sources=screenshots.sources.by(caller),
        next_url=following(f"{ROOT}/rejected", filters, more),
        first_url=following(f"{ROOT}/rejected", filters, "") if cursor else "",
    )


@router.get("/batches")
def list_batches(
    request: Request, caller: ByCaller, status: WorkStatus | Literal[""] = "", cursor: Cursor = None
) -> HTMLResponse:
    """Show batches, newest first."""
    filters = {"status": status}
    (before,) = pages.decode(cursor, int) or (None,)
    rows = screenshots.batches.by(caller, status=status or None, limit=BATCHES + 1, before=before)
    more = pages.encode(rows[BATCHES - 1].id) if len(rows) > BATCHES else None
    return page(
        request,
        caller,
        "batches.html",
        filters=filters,
        batches=rows[:BATCHES],
        statuses=list(WorkStatus),
        next_url=following(f"{ROOT}/batches", filters, more),
        first_url=following(f"{ROOT}/batches", filters, "") if cursor else "",
    )


@router.get("/batches/{batch_id}")
def show_batch(request: Request, caller: ByCaller, batch_id: RowId) -> HTMLResponse:
    """Show a batch: its state, the reason, its frames."""
    batch = screenshots.batch.by(caller, batch_id)
    return page(request, caller, "batch.html", batch=batch, frames=screenshots.screenshots_of.by(caller, batch_id))


@router.get("/dead-letters")
def list_dead_letters(
    request: Request, caller: ByCaller, kind: LetterKind | Literal[""] = "", cursor: Cursor = None
) -> HTMLResponse:
    """Show dead letters with their reasons."""
    filters = {"kind": kind}
    rows = screenshots.dead_letters.by(caller, LETTERS + 1, kind=kind, after=pages.decode(cursor, At, LetterKind, int))
    last = rows[LETTERS - 1] if len(rows) > LETTERS else None
    return page(
        request,
        caller,
        "letters.html",
        filters=filters,
        rows=rows[:LETTERS],
        kinds=list(LetterKind),
        next_url=following(
            f"{ROOT}/dead-letters", filters, pages.encode(last.at, last.kind, last.id) if last else None
        ),
        first_url=following(f"{ROOT}/dead-letters", filters, "") if cursor else "",
    )


@router.post("/dead-letters/replay", dependencies=[*writer, *spender])
def replay(
    request: Request,
    caller: ByCaller,
    letter: Annotated[LetterId | Literal[""], Field()] = "",
    kind: Annotated[LetterKind | Literal["", "all"], Field()] = "",
) -> Response:
    """Let workers retry a dead letter, or all of a `kind`, or with `all` every one."""
    if not letter and not kind:
        raise Refused("name what to retry", code="invalid")
    if letter:
        count = screenshots.replay_letters.by(caller, [letter]).done
        message = "It is retried." if count else "It was already retried."
    else:
        count = screenshots.replay_letters.by(caller, kind="" if kind == "all" else kind).done
        message = f"{plural(count, 'dead letter')} will be retried." if count else "There are no dead letters."
    return done(request, message)


@router.get("/sources")
def list_sources(request: Request, caller: ByCaller) -> HTMLResponse:
    """Show the sources of frames, and the exclusions."""
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
    """Accept or refuse frames of a source from now on."""
    screenshots.set_active.by(caller, source, active)
    return done(request, f"Frames of {source} are {'accepted' if active else 'refused'} from now on.")


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
    # `;` separates patterns; a program's name may hold one, and `?` matches it.
    apps, titles = ([pattern.replace(";", "?")] if pattern else [] for pattern in (app, title))
    screenshots.exclude_also.by(caller, apps, titles)
    return done(request, f"Frames of {' and '.join(filter(None, (app, title)))} are not stored from now on.")


@router.post("/exclusions/remove", dependencies=admin)
def include(
    request: Request,
    caller: ByCaller,
    app: Annotated[Line, Field()] = "",
    title: Annotated[Line, Field()] = "",
) -> Response:
    """Remove an exclusion."""
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
    """Show the content of a range of time before its deletion."""
    zone = screenshots.time_zone.by(caller)
    if last:
        # The range ends now: frames that arrive later are not deleted.
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
    """Delete a range of time with everything derived from it."""
    check_range(since, until)
    deleted = screenshots.forget.by(caller, since, until)
    restored = f"; {plural(deleted.restored, 'node')} returned to their earlier text" if deleted.restored else ""
    message = f"{plural(deleted.screenshots, 'frame')} and {plural(deleted.nodes, 'node')} were deleted{restored}."
    return done(request, message, to=f"{ROOT}/delete")


def moment(text: str, zone: tzinfo) -> datetime:
    """Return the moment, in UTC, of a browser's date and time field; `zone` applies if the text names none.

    Raises `Refused` for any other text, and for years before 1970 or after 2999.
    """
    try:
        parsed = datetime.fromisoformat(text)
        parsed = (parsed if parsed.tzinfo else parsed.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        parsed = None
    if parsed is None or not is_fit(parsed):
        raise Refused("write times like 2026-11-22T10:00", code="invalid")
    return parsed


@router.post("/add", dependencies=[*writer, *spender])
def add(
    request: Request,
    caller: ByCaller,
    form: Annotated[Form, Depends(uploaded(MOST_FILES))],
) -> Response:
    """Ingest the pictures of a form as frames, and say how many were left out and why."""
    added = [take(caller, form, file) for file in form.files]
    if not added:
        raise Refused("choose pictures first", code="invalid")
    by: dict[str, int] = {}
    for frame in added:
        word = "added" if frame.accepted else {"known": "already here"}.get(frame.reason, f"left out: {frame.reason}")
        by[word] = by.get(word, 0) + 1
    message = ", ".join(f"{plural(count, 'picture')} {word}" for word, count in by.items())
    return done(
        request, f"{message}.", to=f"{ROOT}/frames" if any(frame.accepted for frame in added) else f"{ROOT}/sources"
    )
