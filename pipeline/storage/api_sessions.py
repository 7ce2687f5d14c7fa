"""Sessions of the console: what a browser holds in a cookie instead of a key."""

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ForeignKey, String, delete
from sqlalchemy.orm import Mapped, mapped_column

from pipeline.engine.tables import Base, table_of
from pipeline.storage import api_keys
from pipeline.storage.api_keys import KeyView
from pipeline.storage.context import Context
from pipeline.storage.credentials import CredentialColumns, Credentials, CredentialView

PREFIX = "pstw_"


class ApiSession(CredentialColumns, Base):
    """One session, of one key."""

    __tablename__ = "api_sessions"

    key_id: Mapped[str] = mapped_column(String(16), ForeignKey("api_keys.id", ondelete="CASCADE"))


API_SESSIONS = table_of(ApiSession)


@dataclass(frozen=True, kw_only=True)
class SessionView(CredentialView):
    """A session, without its secret."""

    key_id: str


_SESSIONS = Credentials(API_SESSIONS, SessionView, PREFIX, noun="session", listing="penstock keys list")


def begin(context: Context, key: KeyView, lasts: timedelta) -> str:
    """The secret of a new session of this key. It ends with the key, at the latest. Drops those that are over."""
    over = delete(API_SESSIONS).where(API_SESSIONS.c.expires_at < context.db.now())
    context.db.run(lambda tx: tx.execute(over))
    return _SESSIONS.create(context, key.name, lasts, key_id=key.id)[0]


def authenticate(context: Context, secret: str) -> tuple[str, KeyView] | None:
    """(the session's id, its key), if both are still good."""
    found = _SESSIONS.authenticate(context, secret)
    key = api_keys.usable(context, found.key_id) if found else None
    return (found.id, key) if found and key else None


def is_still_usable(context: Context, session_id: str) -> bool:
    """Whether a session that was good is still so; while the database is away, nobody says otherwise."""
    return bool(_SESSIONS.still_usable(context, [session_id]))


def end(context: Context, secret: str) -> None:
    """End a session. Harmless if there is none."""
    found = _SESSIONS.authenticate(context, secret)
    if found:
        _SESSIONS.revoke(context, found.id)
