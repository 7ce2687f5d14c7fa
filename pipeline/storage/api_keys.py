"""Keys of the REST API: who may call it, for what. Only hashes are stored; a secret is shown once.

A plain SHA-256 is enough here: a secret is 256 random bits, not a password, so nobody can guess it from its hash, and a
slow hash would cost every request what it is meant to cost a guesser.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import uuid4

from sqlalchemy import String, insert, or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Mapped, Session, mapped_column

from pipeline.engine.errors import UserError
from pipeline.engine.tables import Base, UtcDateTime, table_of
from pipeline.engine.views import view_of
from pipeline.storage.context import Context

PREFIX = "pstk_"
"""What every secret begins with, so that it is recognised where it must not be, such as in a repository."""
_NOTED_S = 60.0
"""How exactly the last use of a key is on record: not every request writes."""


class Scope(StrEnum):
    """What a key allows; each includes those before it."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"

    def includes(self, other: "Scope") -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(other)


class ApiKey(Base):
    """One key."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    scope: Mapped[str] = mapped_column(String(10))
    secret_hash: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


API_KEYS = table_of(ApiKey)


@dataclass(frozen=True)
class KeyView:
    """A key, without its secret, which nobody knows any more."""

    id: str
    name: str
    scope: Scope
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None

    def usable(self, now: datetime) -> bool:
        """Neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


def create(context: Context, name: str, scope: Scope, lasts: timedelta | None = None) -> tuple[str, KeyView]:
    """(the secret, the key). The secret cannot be had again."""
    secret, now = PREFIX + secrets.token_urlsafe(32), context.db.now()
    row = {
        "id": uuid4().hex[:16], "name": name, "scope": scope, "secret_hash": _hash(secret), "created_at": now,
        "expires_at": now + lasts if lasts else None,
    }  # fmt: skip

    def work(session: Session) -> KeyView:
        found = session.execute(select(API_KEYS).where(API_KEYS.c.secret_hash == row["secret_hash"])).one_or_none()
        if found is None:  # else a commit whose answer was lost
            session.execute(insert(API_KEYS).values(row))
            found = session.execute(select(API_KEYS).where(API_KEYS.c.id == row["id"])).one()
        return view_of(KeyView, found)

    return secret, context.db.run(work)


def authenticate(context: Context, secret: str) -> KeyView | None:
    """The usable key with this secret. Asked anew each time: a revoked key ends at once, in every process."""
    offered = _hash(secret)
    with context.db.read() as session:
        row = session.execute(select(API_KEYS).where(API_KEYS.c.secret_hash == offered)).one_or_none()
    # The index compares hashes, of which the caller controls no prefix; what decides takes the same time for all.
    if row is None or not hmac.compare_digest(row.secret_hash, offered):
        return None
    key, now = view_of(KeyView, row), context.db.now()
    if not key.usable(now):
        return None
    if key.last_used_at is None or (now - key.last_used_at).total_seconds() > _NOTED_S:
        _note_use(context, key.id, now)
    return key


def is_still_usable(context: Context, key_id: str) -> bool:
    """Whether a key that was good is still so; while the database is away, nobody says otherwise."""
    try:
        with context.db.read() as session:
            row = session.execute(select(API_KEYS).where(API_KEYS.c.id == key_id)).one_or_none()
    except SQLAlchemyError:
        return True
    return row is not None and view_of(KeyView, row).usable(context.db.now())


def _note_use(context: Context, key_id: str, now: datetime) -> None:
    earlier = or_(API_KEYS.c.last_used_at.is_(None), API_KEYS.c.last_used_at < now - timedelta(seconds=_NOTED_S))
    noted = update(API_KEYS).where(API_KEYS.c.id == key_id, earlier).values(last_used_at=now)
    context.db.run(lambda session: session.execute(noted))


def list_keys(context: Context) -> list[KeyView]:
    """All keys, oldest first."""
    with context.db.read() as session:
        rows = session.execute(select(API_KEYS).order_by(API_KEYS.c.created_at, API_KEYS.c.id)).all()
    return [view_of(KeyView, row) for row in rows]


def any_usable(context: Context) -> bool:
    """Whether there is a key that somebody could call with."""
    now = context.db.now()
    return any(key.usable(now) for key in list_keys(context))


def revoke(context: Context, name_or_id: str) -> KeyView:
    """End a key now. Harmless if it was revoked before. Raises `UserError` for none or several of that name."""
    found = [key for key in list_keys(context) if key.id == name_or_id]
    found = found or [key for key in list_keys(context) if key.name == name_or_id and key.revoked_at is None]
    if not found:
        raise UserError(f"there is no key {name_or_id}; see `penstock keys list`", code="unknown_key")
    if len(found) > 1:
        raise UserError(f"several keys are called {name_or_id}: give the id", code="ambiguous")
    ended = update(API_KEYS).where(API_KEYS.c.id == found[0].id, API_KEYS.c.revoked_at.is_(None))
    context.db.run(lambda session: session.execute(ended.values(revoked_at=context.db.now())))
    return next(key for key in list_keys(context) if key.id == found[0].id)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
