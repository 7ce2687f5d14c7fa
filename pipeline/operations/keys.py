"""Keys of the API and their accounts. Only administrators see and change keys; a caller sees its own account."""

from dataclasses import dataclass

from pipeline.engine.wire import VIEW
from pipeline.operations import accounts
from pipeline.operations.caller import Caller
from pipeline.operations.operation import acts, operation, reads
from pipeline.storage import api_keys, credentials
from pipeline.storage.api_keys import KeyView, Scope
from pipeline.storage.context import Context
from pipeline.storage.statements import Statement


@dataclass(frozen=True)
class CreatedKey:
    """A new key with its secret. No other answer has the secret."""

    __pydantic_config__ = VIEW
    key: KeyView
    secret: str
    """`pstk_…`: sent as a bearer token, or as `X-Api-Key`."""


def _create(context: Context, name: str, scope: Scope = Scope.WRITE, expires_days: float | None = None) -> CreatedKey:
    """Create a key that is valid for `expires_days` days; None: until it is revoked."""
    secret, key = api_keys.create(context, name, scope, credentials.lasts(expires_days))
    return CreatedKey(key, secret)


def _account(context: Context, name_or_id: str, *, limit: int = 50, before: int | None = None) -> Statement:
    """Return the statement of a key's account. Raises `UserError` unless exactly one key has that name or id."""
    return accounts.statement(context, api_keys.find(context, name_or_id).id, limit=limit, before=before)


list_keys, account = reads(api_keys.list_keys, Scope.ADMIN), reads(_account, Scope.ADMIN)
create, revoke = acts(_create, Scope.ADMIN), acts(api_keys.revoke, Scope.ADMIN)


@operation(Scope.READ)
def own_account(caller: Caller, *, limit: int = 50, before: int | None = None) -> Statement:
    """Return the statement of the caller's own account."""
    return accounts.statement(caller.context, caller.id, limit=limit, before=before)
