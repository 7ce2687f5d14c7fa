"""Secrets that callers show: keys of the API, tokens of nodes. Only hashes are stored; a secret is shown once.

A plain SHA-256 is enough here: a secret is 256 random bits, not a password, so nobody can guess it from its hash, and a
slow hash would cost every request what it is meant to cost a guesser.
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
"""How exactly the last use is on record: not every request writes."""


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
    """A credential without its secret, which nobody knows any more."""

    __pydantic_config__ = VIEW
    id: str
    name: str
    created_at: datetime
    last_used_at: datetime | None
    """To the minute."""
    expires_at: datetime | None
    revoked_at: datetime | None

    def usable(self, now: datetime) -> bool:
        """Neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


def lasts(days: float | None) -> timedelta | None:
    """How long a credential is good, for so many days; None: until it is revoked."""
    return timedelta(days=days) if days else None


View = TypeVar("View", bound=CredentialView)


@dataclass(frozen=True)
class Credentials(Generic[View]):
    """The credentials in one table."""

    table: Table
    view: type[View]
    prefix: str
    """What every secret begins with, so that it is recognised where it must not be, such as in a repository."""
    noun: str
    """What people call one: `key`, `token`."""
    listing: str
    """The command that lists them, for errors."""
    names_are_unique: bool = False
    """A name identifies the caller in lists and logs, so two usable credentials need different names."""

    def create(self, context: Context, name: str, lasts: timedelta | None = None, **more: Any) -> tuple[str, View]:
        """(the secret, the credential). No later call returns the secret. `more`: the table's own columns.

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
            mine = select(self.table).where(self.table.c.id == row["id"])
            found = tx.execute(mine.where(self.table.c.secret_hash == row["secret_hash"])).one_or_none()
            if found is None:  # else a commit whose answer was lost
                if self.names_are_unique:
                    self._check_name(tx, name)
                tx.execute(insert(self.table).values(row))
                found = tx.execute(mine).one()
            return view_of(self.view, found)

        return secret, context.db.run(work)

    def _check_name(self, tx: Tx, name: str) -> None:
        """Raise `UserError` if a usable credential has the name: lists and logs could not tell the two apart."""
        if tx.get_bind().dialect.name == "postgresql":  # SQLite has one writer at a time
            tx.execute(text(f"LOCK TABLE {self.table.name} IN SHARE ROW EXCLUSIVE MODE"))
        same = select(self.table).where(self.table.c.name == name)
        for row in tx.execute(same):
            if view_of(self.view, row).usable(tx.now):
                raise UserError(
                    f"there is a {self.noun} called {name} already ({row.id}): choose another name, or revoke that one",
                    code="exists",
                )

    def authenticate(self, context: Context, secret: str) -> View | None:
        """The usable one with this secret. Asked anew each time: what is revoked ends at once, in every process."""
        offered = _hash(secret)
        with context.db.read() as session:
            row = session.execute(select(self.table).where(self.table.c.secret_hash == offered)).one_or_none()
        # The index compares hashes, of which the caller controls no prefix; what decides takes the same time for all.
        if row is None or not hmac.compare_digest(row.secret_hash, offered):
            return None
        found, now = view_of(self.view, row), context.db.now()
        if not found.usable(now):
            return None
        if found.last_used_at is None or (now - found.last_used_at).total_seconds() > _NOTED_S:
            self._note_use(context, found.id, now)
        return found

    def still_usable(self, context: Context, ids: Collection[str]) -> set[str]:
        """Which of those that were good are still so; while the database is away, nobody says otherwise of any."""
        now = context.db.now()
        try:
            found = self.of_ids(context, ids)
        except SQLAlchemyError:
            return set(ids)
        return {one.id for one in found if one.usable(now)}

    def of_ids(self, context: Context, ids: Collection[str]) -> list[View]:
        """Those with these ids."""
        return [one for some in portions(ids) for one in self._find(context, self.table.c.id.in_(some))]

    def all(self, context: Context) -> list[View]:
        """All of them, oldest first."""
        return self._find(context)

    def any_usable(self, context: Context) -> bool:
        """Whether there is one that somebody could call with."""
        now = context.db.now()
        return any(found.usable(now) for found in self.all(context))

    def find(self, context: Context, name_or_id: str) -> View:
        """One by its name or the beginning of its id. Raises `UserError` for none or several of that name."""
        known = self.all(context)
        found = [one for one in known if one.id == name_or_id]
        found = found or [one for one in known if one.name == name_or_id and one.revoked_at is None]
        if not found and len(name_or_id) >= LEAST_BESIDE_NAMES:
            whole = one_of((one.id for one in known), name_or_id, f"{self.noun}s")
            found = [one for one in known if one.id == whole]
        if not found:
            raise UserError(f"there is no {self.noun} {name_or_id}; see `{self.listing}`", code=f"unknown_{self.noun}")
        if len(found) > 1:
            raise UserError(f"several {self.noun}s are called {name_or_id}: give the id", code="ambiguous")
        return found[0]

    def revoke(self, context: Context, name_or_id: str) -> View:
        """End one now, as `find` finds it. Harmless if it was revoked before."""
        found = self.find(context, name_or_id)
        ended = update(self.table).where(self.table.c.id == found.id, self.table.c.revoked_at.is_(None))
        context.db.run(lambda tx: tx.execute(ended.values(revoked_at=tx.now)))
        return self._find(context, self.table.c.id == found.id)[0]

    def _find(self, context: Context, *conditions: ColumnElement[bool]) -> list[View]:
        asked = select(self.table).where(*conditions).order_by(self.table.c.created_at, self.table.c.id)
        with context.db.read() as session:
            return [view_of(self.view, row) for row in session.execute(asked)]

    def _note_use(self, context: Context, credential_id: str, now: datetime) -> None:
        used = self.table.c.last_used_at
        earlier = or_(used.is_(None), used < now - timedelta(seconds=_NOTED_S))
        noted = update(self.table).where(self.table.c.id == credential_id, earlier).values(last_used_at=now)
        context.db.run(lambda tx: tx.execute(noted))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
