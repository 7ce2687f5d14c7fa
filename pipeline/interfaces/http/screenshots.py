"""Frames in HTTP interfaces: forms with pictures, renditions, ids of failed units, pages of the timeline."""

from datetime import datetime
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field, Json, StringConstraints, ValidationError, WithJsonSchema

from pipeline.flows.screenshots.frames.files import Kind
from pipeline.flows.screenshots.frames.intake import Frame
from pipeline.flows.screenshots.rules.exposure import Box, Placed
from pipeline.flows.screenshots.views import Hour
from pipeline.interfaces.http import pages
from pipeline.interfaces.http.fields import CLEAN, Line, Strict
from pipeline.interfaces.http.moments import At, check_range
from pipeline.interfaces.http.pages import Page
from pipeline.interfaces.http.uploads import File, Form
from pipeline.operations import screenshots
from pipeline.operations.caller import Caller
from pipeline.operations.refusal import Refused
from pipeline.operations.screenshots import Intake

LetterId = Annotated[str, StringConstraints(pattern=r"^(batch|merge|vector):[1-9][0-9]{0,14}$")]
Pattern = Annotated[str, StringConstraints(min_length=1, max_length=200, strip_whitespace=True), CLEAN]
"""A pattern of programs or window titles whose frames Penstock never stores."""
Side = Annotated[int, Field(ge=-100_000, le=100_000)]


_AS_TEXT = WithJsonSchema({"type": "string", "contentMediaType": "application/json"})


class WindowPlace(Strict):
    """A window and its place in pixels of the picture, from the top left; without a place it counts as visible."""

    app: Line = ""
    title: Line = ""
    box: tuple[Side, Side, Side, Side] | None = Field(default=None, description="Left, top, right and bottom.")
    opaque: bool = Field(default=True, description="False: what is behind it shines through.")

    def placed(self) -> Placed:
        box = None if self.box is None else Box(*self.box)
        return Placed(self.app, self.title, box, box if self.opaque else None)


class FrameFields(Strict):
    """The facts of a frame that its capture knows."""

    source: Line = Field(default="screen:0", description="Where it was captured: `screen:ID` or `window:ID`.")
    app: Line = Field(default="", description="The program in the picture, such as Firefox.")
    title: Line = Field(default="", description="The window's title.")
    windows: Annotated[Json[Annotated[list[WindowPlace], Field(max_length=500)]], _AS_TEXT] = Field(
        default_factory=list,
        description="The windows in the picture, the front one first: a JSON array of objects with `app`, `title`, "
        "`box` (left, top, right and bottom in pixels) and `opaque`. If an excluded one is visible, also behind the "
        "front one, Penstock does not store the frame.",
    )
    ts: At | None = Field(
        default=None,
        description="Time of capture, with its zone; none: now. With it, the server recognises a repeated frame.",
    )


def take(caller: Caller, form: Form, file: File) -> Intake:
    """Have a child process inspect the picture of a form, then ingest it with the form's fields. Blocks.

    Raises `RequestValidationError` (422) for wrong fields, and the errors of `ingest_upload`, as for a file that is no
    picture.
    """
    form_values = {name: values[-1] for name, values in form.fields.items() if name != "wait"}
    try:
        fields = FrameFields.model_validate(form_values)
    except ValidationError as error:
        faults = [{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors()]
        raise RequestValidationError(faults) from None
    windows = tuple(window.placed() for window in fields.windows)
    frame = Frame(fields.source, fields.ts or caller.context.db.now(), fields.app, fields.title, windows=windows)
    return screenshots.ingest_upload.by(caller, file.path, "the picture", frame)


async def rendition(request: Request, shot_id: int, kind: Kind) -> tuple[str, bytes]:
    """Return (name, content) of a frame's rendition. Renders it first if it is not stored, which takes seconds for its
    text.

    Raises `UserError` for an unknown frame, one without a picture, or a failed rendering; `Refused` if too many
    requests wait for pictures, the client disconnects, or the server shuts down.
    """
    caller, pictures = request.state.caller, request.app.state.pictures
    stored = await run_sync(screenshots.find_rendition.by, caller, shot_id, kind)
    content = stored.content
    if content is None:
        urgent = kind is not Kind.SMALL
        content = await pictures.get(
            caller,
            stored.name,
            lambda wanted: screenshots.rendition.by(caller, shot_id, kind, wanted),
            urgent=urgent,
        )
    if content is None:
        raise Refused("the client disconnected", code="busy")
    return stored.name, content


def hours_of(
    caller: Caller, limit: int, cursor: str | None, *, since: datetime | None, until: datetime | None, **which: Any
) -> Page[Hour]:
    """Return the hours of the latest `limit` nodes before the cursor, in time order; the next page leads back in time.
    `which`: further filters of `timeline`.

    Raises `Refused` for a range that ends before it begins, and for a cursor that no list gave.
    """
    check_range(since, until)
    before = pages.decode(cursor, At, int)
    hours, following = screenshots.timeline_page.by(caller, limit, since=since, until=until, before=before, **which)
    return Page(items=hours, next_cursor=following and pages.encode(*following))
