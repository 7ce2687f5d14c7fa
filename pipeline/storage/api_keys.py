"""Keys of the REST API: who may call it, and for what."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from sqlalchemy import String
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Mapped, mapped_column

from pipeline.engine import live_settings as live
from pipeline.engine.tables import Base, table_of
from pipeline.engine.wire import VIEW
from pipeline.settings import ApiSettings
from pipeline.storage.context import Context
from pipeline.storage.credentials import CredentialColumns, Credentials, CredentialView

PREFIX = "pstk_"


class Scope(StrEnum):
    """The permissions of a key; each includes those before it."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"

    def includes(self, other: "Scope") -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(other)


class ApiKey(CredentialColumns, Base):
    """One key."""

    __tablename__ = "api_keys"

    scope: Mapped[str] = mapped_column(String(10))


API_KEYS = table_of(ApiKey)


@dataclass(frozen=True, kw_only=True)
class KeyView(CredentialView):
    """A key, without its secret."""

    __pydantic_config__ = VIEW
    scope: Scope


_KEYS = Credentials(API_KEYS, KeyView, PREFIX, noun="key", listing="penstock keys list", names_are_unique=True)
authenticate, list_keys, any_usable = _KEYS.authenticate, _KEYS.all, _KEYS.any_usable
find, revoke = _KEYS.find, _KEYS.revoke


def create(context: Context, name: str, scope: Scope, lasts: timedelta | None = None) -> tuple[str, KeyView]:
    """Create a key that is valid for `lasts`, or if None until it is revoked; return (its secret, the key). No later
    call returns the secret. Raises `UserError` if a usable key has the name."""
    return _KEYS.create(context, name, lasts, scope=scope)


def limits(context: Context) -> ApiSettings | None:
    """Return the limits of each key: the API's settings with their live changes; None while the database is down."""
    own = context.settings.api
    try:
        with context.db.read() as session:
            return live.with_changes(own, live.values(session, live.of_fields("api", own, own.LIVE)))
    except SQLAlchemyError:
        return None


def usable(context: Context, key_id: str) -> KeyView | None:
    """Return the key with this id if it is usable, else None."""
    now = context.db.now()
    return next((key for key in _KEYS.of_ids(context, [key_id]) if key.usable(now)), None)


def is_still_usable(context: Context, key_id: str) -> bool:
    """Whether a once usable key is still usable; True while the database is unavailable."""
    return bool(_KEYS.still_usable(context, [key_id]))
