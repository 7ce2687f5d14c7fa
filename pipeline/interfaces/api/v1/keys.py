"""`/api/v1/keys`: who may call, and for what. Only administrators see and change keys."""

from datetime import datetime, timedelta

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field

from pipeline.interfaces.api.dependencies import InContext, admin
from pipeline.interfaces.api.fields import CredentialName, HexId, LifeDays, Strict
from pipeline.interfaces.api.json_bodies import JsonRoute
from pipeline.interfaces.api.pages import Page
from pipeline.interfaces.api.problems import documented
from pipeline.interfaces.api.shapes import Shape, example
from pipeline.interfaces.api.v1.live_settings import seeing
from pipeline.storage import api_keys
from pipeline.storage.api_keys import Scope

router = APIRouter(prefix="/keys", tags=["keys"], route_class=JsonRoute)


class KeyShape(Shape):
    """A key. Its secret is told once, when it is made."""

    model_config = example(
        id="0123456789abcdef", name="laptop", scope="write", created_at="2026-11-22T10:00:00Z",
        last_used_at="2026-11-23T08:00:00Z", expires_at=None, revoked_at=None,
    )  # fmt: skip
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


@router.post("/{key_id}/revoke", dependencies=admin, responses=documented(404))
def revoke_key(context: InContext, key_id: HexId) -> KeyShape:
    """End a key at once, in every process. Harmless if it was revoked before."""
    return KeyShape.model_validate(api_keys.revoke(context, key_id))
