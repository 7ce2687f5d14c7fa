"""`/api/v1/keys`: who may call, and for what. Only administrators see and change keys."""

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
    """How an account stands today, by the server's clock. Not the statement itself: its charges come page by page."""

    cap: float = Field(description="`api.spend_per_day`; 0: no cap.")
    spent: float
    reserved: float
    since: datetime = Field(description="When the day began.")
    reservations: list[ReservationView]
    charges: list[ChargeView] = Field(description="The newest first, of all days that are on record.")
    next_cursor: str | None = Field(default=None, description="There are older charges: send this as `cursor`.")


class NewKey(Strict):
    """Whom a key is for, and what it allows."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "laptop", "scope": "write", "expires_days": 90}]}
    )
    name: CredentialName
    scope: Scope = Field(
        default=Scope.WRITE, description="`read`; `write`: submit and act too; `admin`: queues, settings and keys too."
    )
    expires_days: LifeDays = Field(default=None, description="None: never.")


@router.get("", dependencies=seeing)
def list_keys(caller: ByCaller) -> Page[KeyView]:
    """List the keys, oldest first, without their secrets."""
    return Page(items=keys.list_keys.by(caller))


@router.post("", dependencies=admin, status_code=201)
def create_key(caller: ByCaller, new: NewKey, response: Response) -> CreatedKey:
    """Make a key. The answer is the only one with its secret.

    That answer is not kept, so an Idempotency-Key does not help here: sent again, the request makes another key.
    """
    response.headers["Cache-Control"] = "no-store"
    return keys.create.by(caller, **dict(new))


@router.get("/{key_id}/account", dependencies=seeing, responses=documented(404))
def show_account(caller: ByCaller, key_id: HexId, limit: Limit = 50, cursor: Cursor = None) -> AccountShape:
    """Show what a key has spent today, what is reserved, and what it was charged for, the newest first."""
    return _account(partial(keys.account.by, caller, key_id), limit, cursor)


@own.get("/account", dependencies=reader)
def show_own_account(caller: ByCaller, limit: Limit = 50, cursor: Cursor = None) -> AccountShape:
    """Show what you have spent today, what is reserved, and what you were charged for, the newest first."""
    return _account(partial(keys.own_account.by, caller), limit, cursor)


def _account(ask: Callable[..., Statement], limit: int, cursor: str | None) -> AccountShape:
    (before,) = pages.decode(cursor, int) or (None,)
    found = ask(limit=limit + 1, before=before)
    charges = pages.views(found.charges, limit, lambda charge: (charge.id,))
    return AccountShape(
        cap=found.cap,
        spent=found.spent,
        reserved=found.reserved,
        since=found.since,
        reservations=list(found.reservations[:limit]),
        charges=charges.items,
        next_cursor=charges.next_cursor,
    )


@router.post("/{key_id}/revoke", dependencies=admin, responses=documented(404))
def revoke_key(caller: ByCaller, key_id: HexId) -> KeyView:
    """End a key at once, in every process. Harmless if it was revoked before."""
    return keys.revoke.by(caller, key_id)
