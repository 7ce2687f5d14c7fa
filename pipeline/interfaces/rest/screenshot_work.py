"""`/api/v1/screenshots/…`: batches, rejected frames, sources, dead letters and their replay."""

from typing import Annotated

from fastapi import APIRouter, Query

from pipeline.flows.screenshots.states import LetterKind, Reason, WorkStatus
from pipeline.flows.screenshots.views import (
    BatchView,
    Exclusions,
    RejectionView,
    SourceView,
)
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, admin, reader, spender, writer
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import Limit, Line, RowId
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.moments import At
from pipeline.interfaces.http.pages import Cursor, Page
from pipeline.interfaces.rest.screenshot_shapes import (
    DeadLetterSelection,
    DeadLetterShape,
    ExclusionsChange,
    SourceSwitch,
)
from pipeline.operations import screenshots
from pipeline.operations.screenshots import Replayed

router = APIRouter(prefix="/screenshots", tags=["screenshots"], route_class=JsonRoute)
Source = Annotated[Line, Query(description="Only batches of this source, such as screen:0.")]


@router.get("/batches", dependencies=reader)
def list_batches(
    caller: ByCaller, status: WorkStatus | None = None, limit: Limit = 50, cursor: Cursor = None
) -> Page[BatchView]:
    """List batches, newest first: state, attempts, origin of the nodes, duration of calls, repairs."""
    (before,) = pages.decode(cursor, int) or (None,)
    rows = screenshots.batches.by(caller, status=status, limit=limit + 1, before=before)
    return pages.views(rows, limit, lambda batch: (batch.id,))


@router.get("/batches/{batch_id}", dependencies=reader, responses=documented(404))
def show_batch(caller: ByCaller, batch_id: RowId) -> BatchView:
    """Show a batch: state, attempts, origin of the nodes, duration of calls, repairs."""
    return screenshots.batch.by(caller, batch_id)


@router.get("/rejected", dependencies=reader)
def list_rejected(
    caller: ByCaller,
    source: Source = "",
    reason: Annotated[Reason | None, Query(description="Only frames left out for this reason.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[RejectionView]:
    """List rejected frames with their reasons, newest first."""
    (before,) = pages.decode(cursor, int) or (None,)
    rows = screenshots.rejections.by(caller, source=source, reason=reason or "", limit=limit + 1, before=before)
    return pages.views(rows, limit, lambda rejection: (rejection.id,))


@router.get("/sources", dependencies=reader)
def list_sources(caller: ByCaller) -> Page[SourceView]:
    """List the screens and windows that frames come from."""
    return Page(items=screenshots.sources.by(caller))


@router.put("/sources/{source}", dependencies=writer)
def switch_source(caller: ByCaller, source: Line, switch: SourceSwitch) -> SourceView:
    """Accept or refuse frames of a source from now on, even before its first frame."""
    screenshots.set_active.by(caller, source, switch.active)
    return next(source_view for source_view in screenshots.sources.by(caller) if source_view.key == source)


@router.get("/exclusions", dependencies=reader)
def show_exclusions(caller: ByCaller) -> Exclusions:
    """Show the programs and window titles whose frames are never stored."""
    return screenshots.exclusions.by(caller)


@router.put("/exclusions", dependencies=admin)
def exclude(caller: ByCaller, change: ExclusionsChange) -> Exclusions:
    """Exclude programs and window titles from now on, in addition to those of the settings. Stored frames stay."""
    return screenshots.exclude.by(caller, apps=change.apps, titles=change.titles)


@router.get("/dead-letters", dependencies=reader)
def list_dead_letters(
    caller: ByCaller, kind: LetterKind | None = None, limit: Limit = 50, cursor: Cursor = None
) -> Page[DeadLetterShape]:
    """List dead letters with their reasons, newest first."""
    after = pages.decode(cursor, At, LetterKind, int)
    rows = screenshots.dead_letters.by(caller, limit + 1, kind=kind or "", after=after)
    return pages.page(rows, limit, DeadLetterShape.of, lambda letter: (letter.at, letter.kind, letter.id))


@router.post("/dead-letters/actions/replay", dependencies=[*writer, *spender])
def replay(caller: ByCaller, selection: DeadLetterSelection) -> Replayed:
    """Retry dead letters. Only failed calls are repeated; paid results stay."""
    return screenshots.replay_letters.by(caller, selection.ids, selection.filter.kind or "")
