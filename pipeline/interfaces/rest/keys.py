"""`/api/v1/keys`: who may call, and for what. Only administrators see and change keys."""

from datetime import datetime, timedelta

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field

from pipeline.interfaces.http import pages
from pipeline.interfaces.http.dependencies import ByCaller, InContext, admin, reader
from pipeline.interfaces.http.errors import documented
from pipeline.interfaces.http.fields import CredentialName, HexId, LifeDays, Limit, Strict
from pipeline.interfaces.http.json_bodies import JsonRoute
from pipeline.interfaces.http.pages import Cursor, Page
from pipeline.interfaces.http.shapes import Shape, example
from pipeline.interfaces.rest.live_settings import seeing
from pipeline.operations import accounts
from pipeline.storage import api_keys
from pipeline.storage.api_keys import Scope
from pipeline.storage.context import Context

router = APIRouter(prefix="/keys", tags=["keys"], route_class=JsonRoute)
own = APIRouter(tags=["keys"])


class KeyShape(Shape):
    """A key. Its secret is told once, when it is made."""

    model_config = example(
        id="0123456789abcdef",
        name="laptop",
        scope="write",
        created_at="2026-11-22T10:00:00Z",
        last_used_at="2026-11-23T08:00:00Z",
        expires_at=None,
        revoked_at=None,
    )
    id: str
    name: str
    scope: Scope
    created_at: datetime
    last_used_at: datetime | None = Field(description="To the minute.")
    expires_at: datetime | None
    revoked_at: datetime | None


class CreatedKeyShape(Shape):
    """A new key with its secret, which is not told again."""

    key: KeyShape
    secret: str = Field(description="`pstk_…`: sent as a bearer token, or as `X-Api-Key`.")


class ChargeShape(Shape):
    """What one call cost you."""

    model_config = example(
        at="2026-11-23T08:00:00Z",
        flow="documents",
        scope_id="0123456789abcdef",
        unit="3",
        operation="page_to_markdown",
        provider="openai",
        model="gpt-4o-mini",
        cost=0.0012,
    )
    at: datetime = Field(description="When the call began.")
    flow: str
    scope_id: str = Field(description="What it was for: a document, an item, a batch, a run.")
    unit: str = Field(description="The part of it, such as a page.")
    operation: str
    provider: str
    model: str
    cost: float = Field(description="By the provider's prices: your share, where others asked for it, too.")


class ReservationShape(Shape):
    """What is reserved for work that has not ended."""

    model_config = example(
        flow="documents",
        item_id="0123456789abcdef",
        unit="",
        amount=0.012,
        charged=0.0036,
        began_at="2026-11-23T08:00:00Z",
        ends_at=None,
    )
    flow: str
    item_id: str
    unit: str
    amount: float = Field(description="The estimate, when it was admitted.")
    charged: float = Field(description="What its calls have cost so far.")
    began_at: datetime
    ends_at: datetime | None = Field(description="It was cut off: calls under way are paid for by then.")


class AccountShape(Shape):
    """How an account stands today, by the server's clock."""

    cap: float = Field(description="`api.spend_per_day`; 0: no cap.")
    spent: float
    reserved: float
    since: datetime = Field(description="When the day began.")
    reservations: list[ReservationShape]
    charges: list[ChargeShape] = Field(description="The newest first, of all days that are on record.")
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
def list_keys(context: InContext) -> Page[KeyShape]:
    """List the keys, oldest first, without their secrets."""
    return Page(items=[KeyShape.model_validate(found) for found in api_keys.list_keys(context)])


@router.post("", dependencies=admin, status_code=201)
def create_key(context: InContext, new: NewKey, response: Response) -> CreatedKeyShape:
    """Make a key. The answer is the only one with its secret.

    That answer is not kept, so an Idempotency-Key does not help here: sent again, the request makes another key.
    """
    response.headers["Cache-Control"] = "no-store"
    lasts = timedelta(days=new.expires_days) if new.expires_days else None
    secret, key = api_keys.create(context, new.name, new.scope, lasts)
    return CreatedKeyShape(key=KeyShape.model_validate(key), secret=secret)


@router.get("/{key_id}/account", dependencies=seeing, responses=documented(404))
def show_account(context: InContext, key_id: HexId, limit: Limit = 50, cursor: Cursor = None) -> AccountShape:
    """Show what a key has spent today, what is reserved, and what it was charged for, the newest first."""
    return _account(context, api_keys.find(context, key_id).id, limit, cursor)


@own.get("/account", dependencies=reader)
def show_own_account(context: InContext, caller: ByCaller, limit: Limit = 50, cursor: Cursor = None) -> AccountShape:
    """Show what you have spent today, what is reserved, and what you were charged for, the newest first."""
    return _account(context, caller.id, limit, cursor)


def _account(context: Context, owner: str, limit: int, cursor: str | None) -> AccountShape:
    (before,) = pages.decode(cursor, int) or (None,)
    found = accounts.statement(context, owner, limit=limit + 1, before=before)
    some = pages.page(found.charges, limit, ChargeShape.model_validate, lambda charge: (charge.id,))
    told = {name: getattr(found, name) for name in ("cap", "spent", "reserved", "since")}
    reservations = [ReservationShape.model_validate(one) for one in found.reservations[:limit]]
    return AccountShape(**told, reservations=reservations, charges=some.items, next_cursor=some.next_cursor)


@router.post("/{key_id}/revoke", dependencies=admin, responses=documented(404))
def revoke_key(context: InContext, key_id: HexId) -> KeyShape:
    """End a key at once, in every process. Harmless if it was revoked before."""
    return KeyShape.model_validate(api_keys.revoke(context, key_id))
