"""Secrets of callers: keys of the API, tokens of nodes. Only hashes are stored; a secret is shown once.

A plain SHA-256 suffices: a secret is 256 random bits, not a password, so it cannot be guessed from its hash. A slow
hash would slow down every request to hinder attacks that cannot succeed.
"""

import hashlib
import hmac
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar
from uuid import uuid4

from sqlalchemy import ColumnElement, String, Table, insert, or_, select, text, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Mapped, mapped_column

from pipeline.engine.errors import UserError
from pipeline.engine.tables import UtcDateTime, portions
from pipeline.engine.transaction import Tx
from pipeline.engine.views import view_of
from pipeline.engine.wire import VIEW
from pipeline.storage.context import Context
from pipeline.storage.short_ids import LEAST_BESIDE_NAMES, one_of

_NOTED_S = 60.0
"""The precision of the last use on record: not every request writes."""


class CredentialColumns:
    """Columns of a table of credentials."""

    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    secret_hash: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


@dataclass(frozen=True, kw_only=True)
class CredentialView:
    """A credential without its secret, which is not stored."""

    __pydantic_config__ = VIEW
    id: str
    name: str
    created_at: datetime
    last_used_at: datetime | None
    """To the minute."""
    expires_at: datetime | None
    revoked_at: datetime | None

    def usable(self, now: datetime) -> bool:
        """Whether it is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


def lasts(days: float | None) -> timedelta | None:
    """Return a number of days as a duration. None or 0: None, valid until it is revoked."""
    return timedelta(days=days) if days else None


View = TypeVar("View", bound=CredentialView)


@dataclass(frozen=True)
class Credentials(Generic[View]):
    """The credentials in one table."""

    table: Table
    view: type[View]
    prefix: str
    """The start of every secret, so that scanners recognise it where it must not be, such as in a repository."""
    noun: str
    """The word for a credential: `key`, `token`."""
    listing: str
    """The command that lists the credentials, for errors."""
    names_are_unique: bool = False
    """Names identify callers in lists and logs, so two usable credentials need different names."""

    def create(self, context: Context, name: str, lasts: timedelta | None = None, **more: Any) -> tuple[str, View]:
        """Create a credential that is valid for `lasts`, or if None until it is revoked; return (secret, credential).
        No later call returns the secret. `more`: further columns.

        If names are unique, raises `UserError` if a usable credential has the name.
        """
        secret, now = self.prefix + secrets.token_urlsafe(32), context.db.now()
        row = {
            "id": uuid4().hex[:16],
            "name": name,
            "secret_hash": _hash(secret),
            "created_at": now,
            "expires_at": now + lasts if lasts else None,
            **more,
        }

        def work(tx: Tx) -> View:
            own = select(self.table).where(self.table.c.id == row["id"])
            created = tx.execute(own.where(self.table.c.secret_hash == row["secret_hash"])).one_or_none()
            if created is None:  # otherwise an earlier try committed, but its answer was lost
                if self.names_are_unique:
                    self._check_name(tx, name)
                tx.execute(insert(self.table).values(row))
                created = tx.execute(own).one()
            return view_of(self.view, created)

        return secret, context.db.run(work)

    def _check_name(self, tx: Tx, name: str) -> None:
        """Raise `UserError` if a usable credential has the name: lists and logs could not distinguish the two."""
        if tx.get_bind().dialect.name == "postgresql":  # SQLite allows one writer at a time
            tx.execute(text(f"LOCK TABLE {self.table.name} IN SHARE ROW EXCLUSIVE MODE"))
        same = select(self.table).where(self.table.c.name == name)
        for row in tx.execute(same):
            if view_of(self.view, row).usable(tx.now):
                raise UserError(
                    f"there is a {self.noun} called {name} already ({row.id}): choose another name, or revoke that one",
                    code="exists",
                )

    def authenticate(self, context: Context, secret: str) -> View | None:
        """Return the usable credential with this secret, else None, and note its use. Reads the database each time:
        revocation works at once."""
        offered = _hash(secret)
        with context.db.read() as session:
            row = session.execute(select(self.table).where(self.table.c.secret_hash == offered)).one_or_none()
        # The index compares hashes, whose prefix callers cannot control; the deciding comparison takes constant time.
        if row is None or not hmac.compare_digest(row.secret_hash, offered):
            return None
        credential, now = view_of(self.view, row), context.db.now()
        if not credential.usable(now):
            return None
        if credential.last_used_at is None or (now - credential.last_used_at).total_seconds() > _NOTED_S:
            self._note_use(context, credential.id, now)
        return credential

    def still_usable(self, context: Context, ids: Collection[str]) -> set[str]:
        """Return the ids among these whose credentials are still usable; all while the database is unavailable."""
        now = context.db.now()
        try:
            credentials = self.of_ids(context, ids)
        except SQLAlchemyError:
            return set(ids)
        return {credential.id for credential in credentials if credential.usable(now)}

    def of_ids(self, context: Context, ids: Collection[str]) -> list[View]:
        """Return the credentials with these ids, usable or not; leave out unknown ids."""
        return [view for portion in portions(ids) for view in self._find(context, self.table.c.id.in_(portion))]

    def all(self, context: Context) -> list[View]:
        """Return all credentials, also revoked and expired ones, oldest first."""
        return self._find(context)

    def any_usable(self, context: Context) -> bool:
        """Whether any credential is usable."""
        now = context.db.now()
        return any(credential.usable(now) for credential in self.all(context))

    def find(self, context: Context, name_or_id: str) -> View:
        """Return a credential by its id; else by its name, unless it is revoked; else by the start of its id, at least
        `LEAST_BESIDE_NAMES` characters. Raises `UserError` for no match or several."""
        known = self.all(context)
        matches = [view for view in known if view.id == name_or_id]
        matches = matches or [view for view in known if view.name == name_or_id and view.revoked_at is None]
        if not matches and len(name_or_id) >= LEAST_BESIDE_NAMES:
            whole = one_of((view.id for view in known), name_or_id, f"{self.noun}s")
            matches = [view for view in known if view.id == whole]
        if not matches:
            raise UserError(f"there is no {self.noun} {name_or_id}; see `{self.listing}`", code=f"unknown_{self.noun}")
        if len(matches) > 1:
            raise UserError(f"several {self.noun}s are called {name_or_id}: give the id", code="ambiguous")
        return matches[0]

    def revoke(self, context: Context, name_or_id: str) -> View:
        """Revoke a credential at once, given by its id, its name or the start of its id, and return it. Harmless if it
        was revoked before."""
        match = self.find(context, name_or_id)
        ended = update(self.table).where(self.table.c.id == match.id, self.table.c.revoked_at.is_(None))
        context.db.run(lambda tx: tx.execute(ended.values(revoked_at=tx.now)))
        return self._find(context, self.table.c.id == match.id)[0]

    def _find(self, context: Context, *conditions: ColumnElement[bool]) -> list[View]:
        query = select(self.table).where(*conditions).order_by(self.table.c.created_at, self.table.c.id)
        with context.db.read() as session:
            return [view_of(self.view, row) for row in session.execute(query)]

    def _note_use(self, context: Context, credential_id: str, now: datetime) -> None:
        used = self.table.c.last_used_at
        earlier = or_(used.is_(None), used < now - timedelta(seconds=_NOTED_S))
        noted = update(self.table).where(self.table.c.id == credential_id, earlier).values(last_used_at=now)
        context.db.run(lambda tx: tx.execute(noted))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
