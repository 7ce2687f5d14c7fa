"""The database's URL: read, and shown, without a word of its password in any error."""

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from pipeline.engine.errors import UserError

_SERVER, _FILE = "postgresql+psycopg", "sqlite"
_DRIVERS = {
    "postgresql": _SERVER,
    "postgres": _SERVER,
    _SERVER: _SERVER,
    _FILE: _FILE,
    "sqlite+pysqlite": _FILE,
}
_ESCAPES = "in a password, write / as %2F, # as %23, ? as %3F, @ as %40, : as %3A"


def read(url: str) -> URL:
    """What the URL says, with the driver that is used for it.

    Raises `UserError` without any of the URL in it: it may hold a password anywhere.
    """
    try:
        found = make_url(url)
    except (ArgumentError, ValueError):
        # From None: SQLAlchemy quotes what it cannot read.
        raise _wrong(f"it is none, or a port is not a number; {_ESCAPES}") from None
    driver = _DRIVERS.get(found.drivername)
    if driver is None:
        raise _wrong("it must begin with postgresql:// or sqlite://")
    if "@" in (found.host or ""):
        raise _wrong(f"a special character is not escaped; {_ESCAPES}")
    return found.set(drivername=driver)


def shown(url: URL) -> str:
    """For people: without the password, and without options, one of which may be another."""
    return url.set(query={}).render_as_string(hide_password=True)


def _wrong(why: str) -> UserError:
    return UserError(
        f"PENSTOCK_DATABASE_URL is not a database URL (postgresql://user:password@host/name): {why}", code="settings"
    )
