"""Settings: live settings, keys, and the connection of other programs."""

from collections.abc import Sequence
from itertools import groupby
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel
from starlette.responses import Response

from pipeline.engine.live_settings import Value, text_of
from pipeline.interfaces.console import live
from pipeline.interfaces.console.addresses import url
from pipeline.interfaces.console.answers import done
from pipeline.interfaces.console.fields import BLANK
from pipeline.interfaces.console.page import piece, screen
from pipeline.interfaces.http.dependencies import ByCaller, admin, reader, seeing
from pipeline.interfaces.http.fields import CredentialName, HexId, LifeDays, Line, Word
from pipeline.operations import keys as access
from pipeline.operations import live_settings
from pipeline.storage.api_keys import Scope

router = APIRouter(prefix="/console/settings", include_in_schema=False, dependencies=reader)
SNIPPETS = (
    ("curl", "curl"),
    ("command", "Command line"),
    ("python", "Python"),
    ("mcp", "Assistants (MCP)"),
    ("openwebui", "Open WebUI"),
    ("docling", "docling-serve clients"),
    ("dify", "Dify"),
    ("events", "Events"),
)


class SettingsPage(live.ViewQuery):
    """The filter of live settings."""

    q: Line = ""
    changed: bool = False


class KeyForm(BaseModel):
    """A new key."""

    name: CredentialName
    scope: Scope = Scope.WRITE
    expires_days: Annotated[LifeDays, BLANK] = None


def _groups(values: Sequence[Value]) -> list[tuple[str, list[Value]]]:
    """Return (label, settings) of each subject: the API, a flow, a provider, a queue."""

    def subject(value: Value) -> str:
        first, _, rest = value.key.partition(".")
        if not rest:
            return "music"  # whose settings keep the names of their design
        return f"{first} {rest.rpartition('.')[0]}".strip() if first in {"provider", "queue"} else first

    return [(_words(name), list(group)) for name, group in groupby(sorted(values, key=subject), key=subject)]


def _words(subject: str) -> str:
    """Return the label of a group."""
    kind, _, name = subject.partition(" ")
    known = {"provider": f"Provider {name}", "queue": f"Queue {name}", "api": "This server"}
    return known.get(kind, subject.replace("_", " ").capitalize())


@router.get("")
def list_settings(request: Request, caller: ByCaller, page: Annotated[SettingsPage, Query()]) -> HTMLResponse:
    """Show live settings to administrators."""
    known = live_settings.list_settings.by(caller) if caller.is_admin else []
    words = page.q.lower().split()
    values = [
        setting
        for setting in known
        if all(word in f"{setting.key} {setting.help}".lower() for word in words)
        and not (page.changed and setting.is_default and not setting.error)
    ]
    changed = sum(not setting.is_default for setting in known)
    return screen(
        request,
        "settings/index.html",
        sees=caller.is_admin,
        groups=_groups(values),
        filters=page,
        known=len(known),
        changed=changed,
        text_of=text_of,
    )


@router.post("/live/{key}", dependencies=admin)
def change(
    request: Request,
    caller: ByCaller,
    key: Word,
    value: Annotated[Line, Form()] = "",
    reason: Annotated[Line, Form()] = "",
) -> Response:
    """Change a live setting."""
    now = live_settings.change_setting.by(caller, key, value, reason=reason)
    return done(request, f"{key} is {text_of(now) or 'empty'}, on every worker within two seconds.")


@router.post("/live/{key}/reset", dependencies=admin)
def reset(request: Request, caller: ByCaller, key: Word, reason: Annotated[Line, Form()] = "") -> Response:
    """Return a live setting to its default."""
    now = live_settings.reset_setting.by(caller, key, reason=reason)
    return done(request, f"{key} is {text_of(now) or 'empty'} again, its default.")


@router.get("/keys", dependencies=seeing)
def list_keys(request: Request, caller: ByCaller) -> HTMLResponse:
    """Show the keys."""
    now, unsorted = caller.context.db.now(), access.list_keys.by(caller)
    keys = sorted(unsorted, key=lambda key: (not key.usable(now), key.name.lower()))
    return screen(request, "settings/keys.html", keys=keys, scopes=list(Scope))


@router.post("/keys", dependencies=admin)
def create_key(request: Request, caller: ByCaller, form: Annotated[KeyForm, Form()]) -> HTMLResponse:
    """Create a key. Only this page shows its secret."""
    created = access.create.by(caller, **dict(form))
    return screen(request, "settings/key_made.html", status=201, secret=created.secret, key=created.key)


@router.post("/keys/{key_id}/revoke", dependencies=admin)
def revoke_key(request: Request, caller: ByCaller, key_id: HexId) -> Response:
    """Revoke a key."""
    ended = access.revoke.by(caller, key_id)
    return done(request, f"The key {ended.name} is revoked: Penstock refuses it from now on.")


def server_of(request: Request) -> str:
    """Return the address of this server, as the browser called it, with the proxy's prefix."""
    by_tls = request.url.scheme == "https" or request.app.state.context.settings.api.tls_by_proxy
    return f"{'https' if by_tls else 'http'}://{request.headers['host']}{url('')}"


@router.get("/clients")
def clients(request: Request, caller: ByCaller) -> HTMLResponse:
    """Show how other programs connect, with this server's address."""
    server = server_of(request)
    texts = {name: piece(f"settings/snippets/{name}.txt", server=server, key=caller.has_key) for name, _ in SNIPPETS}
    return screen(request, "settings/clients.html", snippets=SNIPPETS, texts=texts, server=server)
