"""`/api/v1/screenshots`: add frames, search events, show frames and nodes, delete a range of time."""

from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import StringConstraints

from pipeline.flows.screenshots.deletion import Forgotten
from pipeline.flows.screenshots.frames import renditions
from pipeline.flows.screenshots.frames.files import Kind
from pipeline.flows.screenshots.states import WorkStatus
from pipeline.flows.screenshots.views import (
    Extent,
    Hour,
    NodeDetail,
    NodeView,
    ScreenshotView,
    SearchResult,
    Status,
    TextLine,
)
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, here, reader, same_site, spender, writer
from pipeline.interfaces.http.errors import RETRY_S, documented
from pipeline.interfaces.http.fields import Limit, Line, RowId, Wait
from pipeline.interfaces.http.long_poll import wait_for
from pipeline.interfaces.http.moments import At, Since, Until, check_range
from pipeline.interfaces.http.pages import Cursor, Page
from pipeline.interfaces.http.screenshots import FrameFields, hours_of, rendition, take
from pipeline.interfaces.http.shapes import started
from pipeline.interfaces.http.uploads import Form, uploaded
from pipeline.interfaces.rest.screenshot_shapes import (
    IntakeShape,
    Size,
)
from pipeline.operations import screenshots
from pipeline.operations.refusal import Refused
from pipeline.operations.screenshots import AT_REST

router = APIRouter(prefix="/screenshots", tags=["screenshots"])
PATH = "/api/v1/screenshots"
Words = Annotated[
    Annotated[Line, StringConstraints(min_length=1)], Query(description="Words in any script, such as: invoice march.")
]
App = Annotated[Line, Query(description="Only pictures of this program.")]
Begin = Annotated[At, Query(description="Not before this moment, such as 2026-11-22T10:00:00Z.")]
End = Annotated[At, Query(description="Before this moment.")]
_AT_REST = {None, *AT_REST}
_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".bmp": "image/bmp",
    ".tif": "image/tiff",
}
_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_FORM = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file"],
                "properties": {
                    "file": {**_BINARY["schema"], "description": "PNG, JPEG, WebP, GIF, BMP or TIFF."},
                    **FrameFields.model_json_schema()["properties"],
                },
            }
        },
        **dict.fromkeys(("application/octet-stream", "image/png", "image/jpeg"), _BINARY),
    },
}


@router.post(
    "",
    status_code=202,
    dependencies=[*writer, *spender],
    openapi_extra={"requestBody": _FORM},
    responses={
        200: {
            "model": IntakeShape,
            "description": "The frame is left out, already analysed, or analysed during `wait`.",
        },
        202: started("The frame waits for its analysis."),
        **documented(409, 415, 507),
    },
)
async def add(
    request: Request, response: Response, caller: ByCaller, form: Annotated[Form, Depends(uploaded())], wait: Wait = 0
) -> IntakeShape:
    """Add a frame. A frame that looks like a recent frame of its source is a `duplicate`, and left out.

    Send `multipart/form-data` with a field `file`, and the other values as further fields; or the picture itself as
    the body, and the values in the query.
    """
    if len(form.files) != 1:
        raise Refused("send one picture, in the field `file`", code="invalid")
    intake = await run_sync(take, caller, form, form.files[0])
    state: WorkStatus | None = None
    if intake.shot_id is not None:
        shot_id = intake.shot_id

        def read() -> WorkStatus | None:
            return screenshots.states.by(caller, [shot_id]).get(shot_id)

        state = await wait_for(caller, read, lambda now: now in _AT_REST, wait)
        response.headers["Location"] = here(request, f"{PATH}/{shot_id}")
    if state in _AT_REST:
        response.status_code = 200
    else:
        response.headers["Retry-After"] = str(RETRY_S)
    return IntakeShape(
        outcome=intake.reason or "accepted",
        id=intake.shot_id,
        status=state,
        distance=intake.distance,
        nearest_id=intake.nearest_id,
        threshold=intake.threshold,
    )


@router.get("/search", dependencies=[*reader, *same_site])
def search(caller: ByCaller, q: Words, since: Since = None, app: App = "", limit: Limit = 10) -> SearchResult:
    """Find nodes, best first, by words and, with an embeddings provider, by meaning.

    A search by meaning costs one small call; if the provider does not answer, the search uses words only: see `note`.
    """
    return screenshots.search.by(caller, q, since, app, limit)


@router.get("", dependencies=reader)
def list_screenshots(
    caller: ByCaller,
    since: Since = None,
    until: Until = None,
    source: Annotated[Line, Query(description="Only frames of this source, such as screen:0.")] = "",
    app: App = "",
    status: WorkStatus | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ScreenshotView]:
    """List frames, newest first."""
    check_range(since, until)
    rows = screenshots.screenshots.by(
        caller,
        since=since,
        until=until,
        source=source,
        app=app,
        status=status,
        limit=limit + 1,
        before=pages.decode(cursor, At, int),
    )
    return pages.views(rows, limit, lambda shot: (shot.ts, shot.id))


@router.get("/timeline", dependencies=reader)
def timeline(
    caller: ByCaller,
    since: Since = None,
    until: Until = None,
    thread: Annotated[Line, Query(description="Only nodes of this thread, by its id.")] = "",
    derived: Annotated[bool, Query(description="Include knowledge, states, procedures and plans.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Page[Hour]:
    """Show the timeline by hour and thread, in time order: the latest `limit` nodes.

    `next_cursor` leads to the nodes before them.
    """
    return hours_of(caller, limit, cursor, since=since, until=until, thread=thread, derived=derived)


@router.get("/status", dependencies=reader)
def status(caller: ByCaller) -> Status:
    """Show finished, waiting and failed work, the reasons for waiting, and the work done without a model."""
    return screenshots.status.by(caller)


@router.get("/extent", dependencies=reader)
def extent(caller: ByCaller, since: Begin, until: End) -> Extent:
    """Count what the deletion of this range of time would delete."""
    check_range(since, until)
    return screenshots.extent.by(caller, since, until)


@router.delete("", dependencies=writer)
def delete(caller: ByCaller, since: Begin, until: End) -> Forgotten:
    """Delete the frames of a range of time, with everything derived from them: files, texts, nodes, vectors.

    A node that had absorbed a deleted node returns to its earlier text, and is merged again.
    """
    check_range(since, until)
    return screenshots.forget.by(caller, since, until)


@router.get("/nodes/{node_id}", dependencies=reader, responses=documented(404))
def show_node(caller: ByCaller, node_id: RowId) -> NodeDetail:
    """Show a node: its text, the model or rules that made it, and its calls and frames."""
    return screenshots.show.by(caller, node_id)


@router.get("/{shot_id}", dependencies=reader, responses=documented(404))
def show(caller: ByCaller, shot_id: RowId) -> ScreenshotView:
    """Show a frame with its text."""
    return screenshots.screenshot.by(caller, shot_id)


@router.get("/{shot_id}/nodes", dependencies=reader, responses=documented(404))
def list_nodes_of(caller: ByCaller, shot_id: RowId) -> Page[NodeView]:
    """List the nodes based on a frame, in time order."""
    screenshots.screenshot.by(caller, shot_id)
    return Page(items=screenshots.nodes_of.by(caller, shot_id))


@router.get("/{shot_id}/text", dependencies=reader, responses=documented(404, 503))
async def show_text(
    request: Request, shot_id: RowId, q: Annotated[Line, Query(description="Return the places of these words.")] = ""
) -> Page[TextLine]:
    """List the lines of text on a frame with their places, as this machine recognises them.

    If a model read the frame, that takes some seconds the first time.
    """
    _, text = await rendition(request, shot_id, Kind.TEXT)
    return Page(items=renditions.lines_in(text, q))


@router.get(
    "/{shot_id}/picture",
    dependencies=reader,
    response_class=Response,
    responses={
        200: {"content": {"image/*": _BINARY}, "description": "The picture."},
        304: {"description": "The caller has the current one."},
        **documented(404, 503),
    },
)
async def show_picture(
    request: Request,
    caller: ByCaller,
    shot_id: RowId,
    size: Annotated[Size | None, Query(description="As JPEG: `small` for lists, `large` for a screen.")] = None,
    if_none_match: Annotated[Line | None, Header()] = None,
) -> Response:
    """Download the picture of a frame while it is stored: the original, or a smaller JPEG."""
    headers = {"Cache-Control": "private, max-age=86400"}
    if size is None:
        path = (await run_sync(screenshots.screenshot.by, caller, shot_id)).path
        if path is None or path.suffix not in _TYPES or not path.is_file():
            raise Refused(f"the picture of screenshot {shot_id} is deleted", code="no_picture")
        return FileResponse(path, media_type=_TYPES[path.suffix], headers=headers)
    name, content = await rendition(request, shot_id, Kind[size.name])
    headers["ETag"] = f'"{name}"'
    if if_none_match and headers["ETag"] in if_none_match:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="image/jpeg", headers=headers)
