"""`/api/v1/screenshots/…`: batches, rejected frames, sources, dead letters and their replay."""

from typing import Annotated

from fastapi import APIRouter, Query

from pipeline.flows.screenshots import queries
from pipeline.flows.screenshots.views import DeadLetter
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import InContext, admin, reader, spender, writer
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import Limit, Line, RowId
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.moments import At
from pipeline.interfaces.http.pages import Cursor, Page
from pipeline.interfaces.rest.screenshot_shapes import (
    DeadLetterSelection,
    DeadLetterShape,
    ExclusionsChange,
    ExclusionsShape,
    LetterKind,
    NotReplayed,
    Reason,
    RejectionShape,
    ReplayedShape,
    ScreenshotBatchShape,
    SourceShape,
    SourceSwitch,
)
from tasks import screenshots as flow
from tasks.screenshots import WorkStatus

router = APIRouter(prefix="/screenshots", tags=["screenshots"], route_class=JsonRoute)
Source = Annotated[Line, Query(description="Only of this source, such as screen:0.")]


@router.get("/batches", dependencies=reader)
def list_batches(
    context: InContext, status: WorkStatus | None = None, limit: Limit = 50, cursor: Cursor = None
) -> Page[ScreenshotBatchShape]:
    """List batches, newest first: state, attempts, who made the nodes, how long calls took, what was repaired."""
    (before,) = pages.decode(cursor, int) or (None,)
    found = queries.batches(context, status=status, limit=limit + 1, before=before)
    return pages.page(found, limit, ScreenshotBatchShape.model_validate, lambda batch: (batch.id,))


@router.get("/batches/{batch_id}", dependencies=reader, responses=documented(404))
def show_batch(batch_id: RowId) -> ScreenshotBatchShape:
    """Show a batch: state, attempts, who made the nodes, how long calls took, what was repaired."""
    return ScreenshotBatchShape.model_validate(flow.batch(batch_id))


@router.get("/rejected", dependencies=reader)
def list_rejected(
    context: InContext,
    source: Source = "",
    reason: Annotated[Reason | None, Query(description="Only those left out for this reason.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[RejectionShape]:
    """List frames that were not accepted, newest first, and why."""
    (before,) = pages.decode(cursor, int) or (None,)
    found = queries.rejections(context, source=source, reason=reason or "", limit=limit + 1, before=before)
    return pages.page(found, limit, RejectionShape.model_validate, lambda rejection: (rejection.id,))


@router.get("/sources", dependencies=reader)
def list_sources() -> Page[SourceShape]:
    """List the screens and windows that frames come from."""
    return Page(items=[SourceShape.model_validate(source) for source in flow.sources()])


@router.put("/sources/{source}", dependencies=writer)
def switch_source(source: Line, switch: SourceSwitch) -> SourceShape:
    """Take frames of a source from now on, or refuse them; also one from which no frame has come yet."""
    flow.set_active(source, switch.active)
    return next(SourceShape.model_validate(found) for found in flow.sources() if found.key == source)


@router.get("/exclusions", dependencies=reader)
def show_exclusions() -> ExclusionsShape:
    """Show whose frames are never stored."""
    return ExclusionsShape.model_validate(flow.exclusions())


@router.put("/exclusions", dependencies=admin)
def exclude(change: ExclusionsChange) -> ExclusionsShape:
    """Exclude programs and window titles from now on, beside those of the settings. What was stored before stays."""
    return ExclusionsShape.model_validate(flow.exclude(apps=change.apps, titles=change.titles))


@router.get("/dead-letters", dependencies=reader)
def list_dead_letters(
    context: InContext, kind: LetterKind | None = None, limit: Limit = 50, cursor: Cursor = None
) -> Page[DeadLetterShape]:
    """List work that was given up, the latest first, with the reasons."""
    after = pages.decode(cursor, At, LetterKind, int)
    found = queries.dead_letters(context, limit + 1, kind=kind or "", after=after)
    return pages.page(found, limit, _shape, lambda letter: (letter.at, letter.kind, letter.id))


@router.post("/dead-letters/actions/replay", dependencies=[*writer, *spender])
def replay(selection: DeadLetterSelection) -> ReplayedShape:
    """Retry dead letters. Only failed calls are repeated; paid results stay."""
    if selection.ids is None:
        kinds = [selection.filter.kind] if selection.filter.kind else list(LetterKind)
        done = sum(len(flow.replay(kind)) for kind in kinds)
        return ReplayedShape(matched=done, done=done, skipped=[])
    wanted: dict[str, list[int]] = {}
    for letter in dict.fromkeys(selection.ids):
        kind, _, number = letter.partition(":")
        wanted.setdefault(kind, []).append(int(number))
    done, skipped = 0, []
    for kind, ids in wanted.items():
        replayed = set(flow.replay(kind, ids, strict=False))
        done += len(replayed)
        skipped += [NotReplayed(id=f"{kind}:{id_}", reason="not a dead letter") for id_ in ids if id_ not in replayed]
    return ReplayedShape(matched=done + len(skipped), done=done, skipped=skipped)


def _shape(letter: DeadLetter) -> DeadLetterShape:
    return DeadLetterShape(
        id=f"{letter.kind}:{letter.id}",
        kind=LetterKind(letter.kind),
        reason=letter.reason,
        attempts=letter.attempts,
        at=letter.at,
    )
