"""`PUT /mcp/uploads/{upload_id}`: the file for which `request_upload` gave a ticket, as the request's body."""

from pathlib import Path
from uuid import uuid4

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pipeline.interfaces.http.identity import TICKETED, presented
from pipeline.interfaces.http.uploads import File, receive
from pipeline.operations.refusal import Refused
from pipeline.storage import upload_tickets
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context

PATH = TICKETED + "{upload_id}"


async def receive_upload(request: Request) -> Response:
    """Store the file until its owner submits it by the upload's id. Uses the ticket up, whatever happens then."""
    context: Context = request.app.state.context
    request.state.caller.check(Scope.WRITE)
    ticket = await run_sync(upload_tickets.take, context, presented(request.headers))
    if ticket is None or ticket.upload_id != request.path_params["upload_id"]:
        raise Refused("an upload needs a ticket that is not used: call request_upload", code="unauthorized")
    async with receive(request) as form:
        if len(form.files) != 1:
            raise Refused("send the file itself, as application/octet-stream", code="invalid")
        await run_sync(_keep, context, ticket, form.files[0])
        answer = {"upload": ticket.upload_id, "filename": ticket.filename, "size_bytes": form.files[0].size}
    return JSONResponse(answer, 201)


def _keep(context: Context, ticket: upload_tickets.Ticket, file: File) -> None:
    kept: Path = file.path.with_name(f"incoming-{uuid4().hex}")
    file.path.rename(kept)
    waiting = upload_tickets.Waiting(ticket.owner, ticket.filename, kept.name, file.sha256)
    upload_tickets.keep(context, ticket.upload_id, waiting)
