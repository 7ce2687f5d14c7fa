"""Sessions of the console: a browser holds one in a cookie instead of a key."""

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
    """A session of one key."""

    __tablename__ = "api_sessions"

    key_id: Mapped[str] = mapped_column(String(16), ForeignKey("api_keys.id", ondelete="CASCADE"))


API_SESSIONS = table_of(ApiSession)


@dataclass(frozen=True, kw_only=True)
class SessionView(CredentialView):
    """A session, without its secret."""

    key_id: str


_SESSIONS = Credentials(API_SESSIONS, SessionView, PREFIX, noun="session", listing="penstock keys list")


def begin(context: Context, key: KeyView, lasts: timedelta) -> str:
    """Create a session of this key and return its secret. It ends no later than the key. Deletes expired sessions."""
    over = delete(API_SESSIONS).where(API_SESSIONS.c.expires_at < context.db.now())
    context.db.run(lambda tx: tx.execute(over))
    return _SESSIONS.create(context, key.name, lasts, key_id=key.id)[0]


def authenticate(context: Context, secret: str) -> tuple[str, KeyView] | None:
    """Return (session id, key) for a session's secret, if both are usable; else None."""
    session = _SESSIONS.authenticate(context, secret)
    key = api_keys.usable(context, session.key_id) if session else None
    return (session.id, key) if session and key else None


def is_still_usable(context: Context, session_id: str) -> bool:
    """Whether a once usable session is still usable; True while the database is unavailable."""
    return bool(_SESSIONS.still_usable(context, [session_id]))


def end(context: Context, secret: str) -> None:
    """End a session. Harmless for an unknown secret."""
    session = _SESSIONS.authenticate(context, secret)
    if session:
        _SESSIONS.revoke(context, session.id)
