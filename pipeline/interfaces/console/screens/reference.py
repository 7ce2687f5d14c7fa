"""The API reference: every operation, and one with all that it takes and gives."""

from itertools import groupby
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from pipeline.interfaces.console import live, reference
from pipeline.interfaces.console.page import screen
from pipeline.interfaces.console.screens.settings import server_of
from pipeline.interfaces.http.dependencies import ByCaller, reader
from pipeline.interfaces.http.fields import Line, Word
from pipeline.operations.refusal import Refused

router = APIRouter(prefix="/console/settings/reference", include_in_schema=False, dependencies=reader)


class ReferencePage(live.Asked):
    """What is looked for."""

    q: Line = ""


@router.get("")
def list_operations(request: Request, page: Annotated[ReferencePage, Query()]) -> HTMLResponse:
    """Every operation, by subject, or those with the words that are looked for."""
    known = reference.operations(request.app.state.openapi())
    found = reference.search(known, page.q)
    subjects = [(name, list(some)) for name, some in groupby(found, lambda one: one.subject)]
    return screen(request, "settings/reference.html", subjects=subjects, q=page.q, known=len(known), found=len(found))


@router.get("/{operation_id}")
def show(request: Request, caller: ByCaller, operation_id: Word) -> HTMLResponse:
    """One operation."""
    document = request.app.state.openapi()
    known = reference.operations(document)
    one = next((one for one in known if one.id == operation_id), None)
    if one is None:
        raise Refused("there is no such operation", code="not_found")
    found = reference.answers(document, one)
    return screen(
        request,
        "settings/operation.html",
        one=one,
        parameters=reference.parameters(document, one),
        bodies=reference.request_bodies(document, one),
        answers=[answer for answer in found if answer.status < "400"],
        problems=[answer for answer in found if answer.status >= "400"],
        curl=reference.curl(document, one, server_of(request), key=caller.has_key),
    )
