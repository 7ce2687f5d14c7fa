"""Additions to a knowledge base: files, folders, addresses, sitemaps and notes."""

from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, StringConstraints, TypeAdapter
from starlette.responses import Response

from pipeline.flows.knowledge.intake import Added, Source
from pipeline.flows.knowledge.states import ItemType
from pipeline.interfaces.console.answers import done
from pipeline.interfaces.console.fields import AREA
from pipeline.interfaces.console.kept import kept
from pipeline.interfaces.console.page import screen
from pipeline.interfaces.console.words import plural
from pipeline.interfaces.http import uploads
from pipeline.interfaces.http.dependencies import ByCaller, reader, spender, writer
from pipeline.interfaces.http.fields import HexId, Id, Line, LongProse, Url
from pipeline.operations import knowledge
from pipeline.operations.knowledge import MAX_FILES, MAX_ITEMS
from pipeline.operations.refusal import Refused

router = APIRouter(prefix="/console/knowledge", include_in_schema=False, dependencies=reader)
_URLS = TypeAdapter(list[Url])


@router.get("/bases/{base_id}/add", dependencies=writer)
def ask(request: Request, base_id: HexId) -> HTMLResponse:
    """Show the forms that add files, addresses and notes to a base."""
    return screen(request, "knowledge/add.html", base=knowledge.base(base_id), tab="add", most=MAX_FILES)


@router.post("/bases/{base_id}/files", dependencies=[*writer, *spender])
async def add_files(request: Request, caller: ByCaller, base_id: HexId) -> Response:
    """Add files, or with a folder's name in `groupName` the files of a folder."""
    async with uploads.receive(request, MAX_FILES) as form:
        # A browser sends an empty field as a file without a name.
        fields = {name: values for name, values in form.fields.items() if name != "files" and values != [""]}
        named = [file for file in form.files if file.filename]
        if not named:
            raise Refused("choose at least one file", code="invalid")
        files, folder = uploads.of_folder(uploads.Form(named, fields))
        added = await run_sync(knowledge.add_uploads.by, caller, base_id, files, folder)
        return _report(request, base_id, added)


class Texts(BaseModel):
    """The text of a form."""

    kind: ItemType
    text: Annotated[LongProse, AREA]
    name: Annotated[Line, StringConstraints(max_length=200)] = ""


@router.post("/bases/{base_id}/texts", dependencies=[*writer, *spender])
def add_texts(request: Request, caller: ByCaller, base_id: HexId, form: Annotated[Texts, Form()]) -> Response:
    """Add addresses or sitemaps, one per line, or a note."""
    if form.kind is ItemType.NOTE:
        sources = [Source(ItemType.NOTE, text=form.text, name=form.name)]
    elif form.kind in {ItemType.URL, ItemType.SITEMAP}:
        lines = [line.strip() for line in form.text.splitlines() if line.strip()]
        if not 0 < len(lines) <= MAX_ITEMS:
            raise Refused(f"give 1 to {MAX_ITEMS:,} addresses, each on a line of its own", code="invalid")
        sources = [Source(form.kind, url=url) for url in _URLS.validate_python(lines)]
    else:
        raise Refused("upload files instead", code="upload")
    return _report(request, base_id, knowledge.add.by(caller, base_id, sources))


def _report(request: Request, base_id: str, added: Added) -> Response:
    message, to = f"{plural(len(added.created), 'item')} added.", f"/console/knowledge/bases/{base_id}"
    if added.failed or added.warnings:
        message += f" {plural(len(added.failed), 'other')} not added." if added.failed else ""
        to += f"/added?report={kept(request).put(request.state.caller.id, added)}"
    return done(request, message, to=to)


@router.get("/bases/{base_id}/added")
def report(request: Request, caller: ByCaller, base_id: HexId, report: Id) -> HTMLResponse:
    """Show the outcome of an addition; an empty one if it is no longer kept."""
    added: Added | None = kept(request).get(caller.id, report)
    return screen(request, "knowledge/added.html", base=knowledge.base(base_id), added=added or Added(), tab="add")
