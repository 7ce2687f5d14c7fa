"""Tools that search screenshots by words and meaning, or show them in the order of time."""

from typing import Annotated

from pydantic import Field

from pipeline.flows.screenshots.views import Hour, SearchResult
from pipeline.interfaces.http.fields import Line
from pipeline.interfaces.http.moments import At
from pipeline.interfaces.http.pages import Page
from pipeline.interfaces.http.screenshots import hours_of
from pipeline.interfaces.mcp.tool import Arguments, Call, Toolbox
from pipeline.operations import screenshots

BOX = Toolbox()


Words = Annotated[Line, Field(min_length=1, description="Words in any script, such as: invoice march.")]
_SINCE = Field(default=None, description="From this moment on, such as 2026-11-22T10:00:00Z.")


class Question(Arguments):
    """The words to search."""

    query: Words
    since: At | None = _SINCE
    app: Line = Field(default="", description="Only where this program is in the picture.")
    limit: int = Field(default=10, ge=1, le=50)


@BOX.tool("Search screenshots", spends=True)
def search_screenshots(call: Call, arguments: Question) -> SearchResult:
    """Find the user's activities on the screen, best first, by words and, where it is configured, by meaning."""
    return screenshots.search.by(call.caller, arguments.query, arguments.since, arguments.app, arguments.limit)


class Stretch(Arguments):
    """A stretch of time."""

    since: At | None = _SINCE
    until: At | None = Field(default=None, description="Before this moment.")
    thread: Line = Field(default="", description="Only this thread of activity, by its id.")
    derived: bool = Field(default=False, description="Include knowledge, state, procedures and plans.")
    limit: int = Field(default=50, ge=1, le=200)
    cursor: Annotated[Line, Field(min_length=1)] | None = Field(
        default=None, description="next_cursor of the previous answer: leads to earlier hours."
    )


@BOX.tool("Show what happened on the screen")
def timeline(call: Call, arguments: Stretch) -> Page[Hour]:
    """Show the user's activities on the screen, hour by hour, the latest last; next_cursor leads to earlier hours."""
    return hours_of(call.caller, **dict(arguments))
