"""About: the version of Penstock, its storage and its health."""

from importlib.metadata import version

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from pipeline.interfaces.console.page import screen
from pipeline.interfaces.http.dependencies import ByCaller, InContext, reader
from pipeline.standalone.doctor import about

router = APIRouter(prefix="/console/settings/about", include_in_schema=False, dependencies=reader)
CSS = {"ok": "done", "warn": "waiting", "fail": "failed"}


@router.get("")
def show(request: Request, context: InContext, caller: ByCaller) -> HTMLResponse:
    """Show the version; to administrators also storage and checks."""
    facts = about(context) if caller.is_admin else None
    return screen(request, "settings/about.html", facts=facts, version=version("penstock"), css=CSS)
