"""`POST /api/v1/documents/url`: submit a file that the server fetches, if `PENSTOCK_API__FETCH` allows that."""

from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request, Response
from pydantic import Field

from pipeline.flows.documents.submission import Options
from pipeline.interfaces.http.dependencies import spender, writer
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import Line, Wait
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.remote import fetched
from pipeline.interfaces.rest.document_shapes import DocumentShape, SubmitOptions
from pipeline.interfaces.rest.documents import accepted, settled, submit_file

router = APIRouter(prefix="/documents", tags=["documents"], dependencies=[*writer, *spender], route_class=JsonRoute)


class Address(SubmitOptions):
    """Where the file is, and how to convert it."""

    url: Annotated[Line, Field(min_length=1, description="http or https, at a public address.")]


@router.post(
    "/url",
    status_code=202,
    responses={200: {"model": DocumentShape, "description": "It has settled."}, **documented(404, 409, 415, 507)},
)
async def submit_url(request: Request, response: Response, address: Address, wait: Wait = 0) -> DocumentShape:
    """Fetch a file and submit it. Refused (403) unless the server's settings allow it."""
    options = Options(**address.model_dump(exclude={"url"}))
    async with fetched(request.state.caller, address.url) as file:
        document = await run_sync(submit_file, request.state.caller, file, options)
    return accepted(request, response, await settled(request, document.id, wait), wait)
