"""`/api/v1/keys`: keys and their permission scopes. Only administrators see and change keys."""

from collections.abc import Callable
from datetime import datetime
from functools import partial

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field

from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, admin, reader, seeing
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import CredentialName, HexId, LifeDays, Limit, Strict
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.pages import Cursor, Page
from pipeline.interfaces.http.shapes import Shape
from pipeline.operations import keys
from pipeline.operations.keys import CreatedKey
from pipeline.storage.api_keys import KeyView, Scope
from pipeline.storage.statements import ChargeView, ReservationView, Statement

router = APIRouter(prefix="/keys", tags=["keys"], route_class=JsonRoute)
own = APIRouter(tags=["keys"])


class AccountShape(Shape):
    """An account's state today, by the server's clock, with a page of its charges."""

    cap: float = Field(description="`api.spend_per_day`; 0: no cap.")
    spent: float
    reserved: float
    since: datetime = Field(description="The start of the day.")
    reservations: list[ReservationView]
    charges: list[ChargeView] = Field(description="Newest first, of all recorded days.")
    next_cursor: str | None = Field(default=None, description="More charges exist: send this as `cursor`.")


class NewKey(Strict):
    """A key's name, scope and lifetime."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "laptop", "scope": "write", "expires_days": 90}]}
    )
    name: CredentialName
    scope: Scope = Field(
        default=Scope.WRITE,
        description="`read`; `write`: also submit and act; `admin`: also queues, settings and keys.",
    )
    expires_days: LifeDays = Field(default=None, description="None: it never expires.")


@router.get("", dependencies=seeing)
def list_keys(caller: ByCaller) -> Page[KeyView]:
    """List the keys, oldest first, without their secrets."""
    return Page(items=keys.list_keys.by(caller))


@router.post("", dependencies=admin, status_code=201)
def create_key(caller: ByCaller, new: NewKey, response: Response) -> CreatedKey:
    """Create a key. Only this answer holds its secret.

    Penstock does not store the answer, so an Idempotency-Key has no effect: a repeated request creates another key.
    """
    response.headers["Cache-Control"] = "no-store"
    return keys.create.by(caller, **dict(new))


@router.get("/{key_id}/account", dependencies=seeing, responses=documented(404))
def show_account(caller: ByCaller, key_id: HexId, limit: Limit = 50, cursor: Cursor = None) -> AccountShape:
    """Show a key's spending and reservations of today, and its charges, newest first."""
    return _account(partial(keys.account.by, caller, key_id), limit, cursor)


@own.get("/account", dependencies=reader)
def show_own_account(caller: ByCaller, limit: Limit = 50, cursor: Cursor = None) -> AccountShape:
    """Show your spending and reservations of today, and your charges, newest first."""
    return _account(partial(keys.own_account.by, caller), limit, cursor)


def _account(ask: Callable[..., Statement], limit: int, cursor: str | None) -> AccountShape:
    (before,) = pages.decode(cursor, int) or (None,)
    rows = ask(limit=limit + 1, before=before)
    charges = pages.views(rows.charges, limit, lambda charge: (charge.id,))
    return AccountShape(
        cap=rows.cap,
        spent=rows.spent,
        reserved=rows.reserved,
        since=rows.since,
        reservations=list(rows.reservations[:limit]),
        charges=charges.items,
        next_cursor=charges.next_cursor,
    )


@router.post("/{key_id}/revoke", dependencies=admin, responses=documented(404))
def revoke_key(caller: ByCaller, key_id: HexId) -> KeyView:
    """Revoke a key at once, in every process. Harmless if it is already revoked."""
    return keys.revoke.by(caller, key_id)
