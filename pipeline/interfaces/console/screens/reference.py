"""The API reference: all operations, and one with its parameters, bodies and answers."""

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


class ReferencePage(live.ViewQuery):
    """The words of a search."""

    q: Line = ""


@router.get("")
def list_operations(request: Request, page: Annotated[ReferencePage, Query()]) -> HTMLResponse:
    """Show all operations by subject, or those that match a search."""
    known = reference.operations(request.app.state.openapi())
    matches = reference.search(known, page.q)
    subjects = [(name, list(group)) for name, group in groupby(matches, lambda operation: operation.subject)]
    return screen(
        request,
        "settings/reference.html",
        subjects=subjects,
        q=page.q,
        known=len(known),
        matched=len(matches),
        docs_url=request.app.state.context.settings.api.docs_url,
    )


@router.get("/{operation_id}")
def show(request: Request, caller: ByCaller, operation_id: Word) -> HTMLResponse:
    """Show an operation."""
    document = request.app.state.openapi()
    known = reference.operations(document)
    operation = next((operation for operation in known if operation.id == operation_id), None)
    if operation is None:
        raise Refused("unknown operation", code="not_found")
    answers = reference.answers(document, operation)
    return screen(
        request,
        "settings/operation.html",
        operation=operation,
        parameters=reference.parameters(document, operation),
        bodies=reference.request_bodies(document, operation),
        answers=[answer for answer in answers if answer.status < "400"],
        problems=[answer for answer in answers if answer.status >= "400"],
        curl=reference.curl(document, operation, server_of(request), key=caller.has_key),
    )
